"""The Triton function of a kernel.

    @triton.jit
    def NAME(p0, p1, XB: tl.constexpr, RB: tl.constexpr):
        x = tl.program_id(0) ...      where the program's rows or points are
        ...                           the phases, one after the other

Names depend on the kernel's form alone: kernels that differ in their buffers only have one text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from braze.codegen.triton.attention import attention_lines
from braze.codegen.triton.attention_gradients import gradient_lines
from braze.codegen.triton.fold import TritonFold
from braze.codegen.triton.forms import forms_of_kernel
from braze.codegen.triton.index import index_text, operand_text
from braze.codegen.triton.online import OnlinePass, Pair, PairFold, plan_passes
from braze.codegen.triton.operators import TYPES
from braze.codegen.triton.pairs import find_neighbours
from braze.codegen.triton.product import block_lines, product_lines
from braze.codegen.triton.scope import NUMBER, Dimensions, TritonScope, TritonTerm
from braze.codegen.triton.spread import Meetings
from braze.codegen.triton.tiling import Dimension, Tiling
from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, Scatter
from braze.ir.kernels.scalars import loads
from braze.ir.kernels.schedule import (
    Accumulate,
    AttentionGradients,
    Kernel,
    Product,
    Store,
    scalar_of,
)
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, floor_div

_LONG_WALK = 8  # blocks


@frozen
class Body:
    """The lines of a function; checked: it asserts that indices are in range."""

    lines: tuple[str, ...]
    checked: bool


def function_body(
    kernel: Kernel,
    tiling: Tiling,
    sizes: Mapping[Symbol, str],
    numbers: Collection[Buffer],
    numerics: str,
) -> Body:
    """The function's lines, without its head; `numbers` are the buffers that come as values."""
    pointers = {buffer: f"p{number}" for number, buffer in enumerate(kernel.memory)}
    scope = TritonScope(tiling, pointers, sizes, forms_of_kernel(kernel, numerics))
    scope.multiplies = numerics != "eager"
    scope.local.update({buffer: TritonTerm(pointers[buffer], NUMBER) for buffer in numbers})
    writer = _FunctionWriter(kernel, tiling, scope, numerics)
    return Body(tuple(writer.text()), scope.checked)


def programs(tiling: Tiling) -> Expr:
    """How many programs there are."""
    total = as_expr(1)
    for dimension in tiling.grid_dimensions:
        total = total * _blocks(dimension)
    total = total * tiling.parts
    return floor_div(total + (tiling.together - 1), tiling.together)


@dataclass(slots=True)
class _FunctionWriter:
    kernel: Kernel
    tiling: Tiling
    scope: TritonScope
    numerics: str
    lines: list[str] = field(default_factory=list)
    written: set[Buffer] = field(default_factory=set)
    meetings: Meetings | None = None

    def text(self) -> list[str]:
        if self.kernel.attention is not None:
            is_backward = isinstance(self.kernel.attention, AttentionGradients)
            lines = gradient_lines if is_backward else attention_lines
            return lines(self.kernel, self.scope, self.numerics)
        if self.kernel.product is not None:
            return self._product(self.kernel.product)
        if self.kernel.columns:
            return self._task()
        if self.kernel.spread is not None:
            self.meetings = Meetings(self.kernel.spread, self.scope)
        self._indices()
        self._passes()
        return self.lines

    def _product(self, product: Product) -> list[str]:
        """A product of matrices, then what is done with each of its elements."""
        self.lines += block_lines(self.tiling)
        for dimension in self.tiling.dimensions:
            self._index(dimension, f"{dimension.name}_block", self.lines)
        self.lines += product_lines(product, self.tiling, self.scope, self.numerics)
        self.scope.local[product.target] = TritonTerm("acc", frozenset("yx"))
        for statement in self.kernel.phases[0].body:
            assert isinstance(statement, Store)
            self._store(statement)
        self._flush()
        return self.lines

    def _task(self) -> list[str]:
        """Rows one after another, and sums over them."""
        reduced, scope, together = self._reduced, self.scope, self.tiling.together
        assert reduced is not None
        (rows,) = self.tiling.grid_dimensions
        head = [
            f"pid = tl.program_id(0){'.to(tl.int64)' if self.tiling.wide else ''}",
            f"r_lane = {self._lane(reduced)}",
        ]
        self._points(reduced, "r_lane", head)
        for number, column in enumerate(self.kernel.columns):
            start = f"tl.full([RB], 0, tl.{TYPES[column.dtype]})"
            head.append(f"c{number} = {start}")
        limit = index_text(rows.size, scope.sizes)
        head.append(f"rows = tl.minimum({together}, {limit} - pid * {together})")
        head.append(f"for row in tl.range(0, rows, num_stages={self.tiling.stages}):")
        self._index(rows, f"pid * {together} + row", self.lines)
        self._passes()
        tail = []
        for number, column in enumerate(self.kernel.columns):
            value = scope.emit(column.body)
            scope.add(f"c{number} = c{number} + {value.text}", value.along)
            mask = "" if reduced.is_exact else ", rm"
            width = index_text(reduced.size, scope.sizes)
            place = f"{scope.pointers[column.target]} + pid * {width} + r_lane"
            tail.append(f"tl.store({place}, c{number}{mask})")
        self._flush()
        return [*head, *(f"    {line}" for line in self.lines), *tail]

    def _passes(self) -> None:
        reduced = self._reduced
        walked = reduced is not None and reduced.walked
        parts = plan_passes(self.kernel.phases, walked, self.meetings is not None)
        for number, part in enumerate(parts):
            if walked and len(parts) > 1:
                self.scope.reads_on = number < len(parts) - 1
            self._barrier(part)
            self._pass(number, part, walked)
            for statement in part.row:
                self._store(statement, "" if self.meetings is None else self.meetings.first)
            self._flush()
            stores = (s for s in (*part.body, *part.row) if isinstance(s, Store))
            self.written |= {s.target for s in stores if s.target in self.scope.pointers}

    # --- where the program is ----------------------------------------------------------------

    def _indices(self) -> None:
        place = "tl.program_id(0)"
        self.lines.append(f"pid = {place}.to(tl.int64)" if self.tiling.wide else f"pid = {place}")
        if self.meetings is not None:
            self.lines += self.meetings.place()
        grid = [d for d in self.tiling.grid_dimensions if d.loops]
        for number, dimension in enumerate(reversed(grid)):
            base = "pid"
            if number < len(grid) - 1:
                count = operand_text(_blocks(dimension), self.scope.sizes)
                self.lines.append(f"{dimension.name}_block = pid % {count}")
                self.lines.append(f"pid = pid // {count}")
                base = f"{dimension.name}_block"
            self._index(dimension, base, self.lines)
        reduced = self._reduced
        if reduced is not None:
            self.lines.append(f"r_lane = {self._lane(reduced)}")
            if reduced.shift:
                self._base(reduced)
            if not reduced.walked:
                start = "" if self.meetings is None else "r_part * RB + "
                self._points(reduced, f"{start}r_lane", self.lines)

    @property
    def _reduced(self) -> Dimension | None:
        return next((d for d in self.tiling.dimensions if d.name == self.tiling.reduced), None)

    def _index(self, dimension: Dimension, base: str, lines: list[str]) -> None:
        if not dimension.block:
            self._points(dimension, base, lines)
            return
        self._points(
            dimension, f"{base} * {dimension.name.upper()}B + {self._lane(dimension)}", lines
        )

    def _base(self, reduced: Dimension) -> None:
        """Where the aligned walk begins and ends, of a row that begins anywhere: with a line of
        memory, and with the 16 bytes that its last element is in."""
        base, width, size, unit = self.tiling.base, reduced.shift, reduced.size, reduced.unit
        assert base is not None
        end = index_text(size + (unit - 1), self.scope.sizes)
        self.lines += [
            f"r_base = {index_text(base, self.scope.sizes)}",
            f"r_shift = r_base % {width}",
            f"r_base = tl.multiple_of(r_base - r_shift, {width})",
            f"r_end = tl.multiple_of(({end} + r_shift) // {unit} * {unit}, {unit})",
        ]

    def _lane(self, dimension: Dimension) -> str:
        """The points of a block, along their axis."""
        axes = [":" if d is dimension else "None" for d in self.tiling.axes]
        at = f"[{', '.join(axes)}]" if len(axes) > 1 else ""
        return f"tl.arange(0, {dimension.name.upper()}B){at}"

    def _points(self, dimension: Dimension, text: str, lines: list[str]) -> None:
        """The index of each loop of the dimension, from that of all of them; and the mask."""
        sizes = self.scope.sizes
        (first, _), *others = dimension.loops or ((Symbol("none"), 1),)
        name = dimension.name if others else first.name
        if dimension.shift:
            lines.append(f"r_walk = {text}")
            lines.append("rc = r_walk < r_end")
            text = "r_walk - r_shift"
        lines.append(f"{name} = {text}")
        if dimension.shift:
            limit, kind = index_text(dimension.size, sizes), 64 if self.tiling.wide else 32
            lines.append(f"rm = {name}.to(tl.uint{kind}, bitcast=True) < {limit}")
        elif not dimension.is_exact:
            limit = index_text(dimension.size, sizes)
            lines.append(f"{dimension.name}m = {name} < {limit}")
        if not others:
            return
        for number in range(len(dimension.loops) - 1, 0, -1):
            symbol, size = dimension.loops[number]
            divisor = operand_text(as_expr(size), sizes)
            lines.append(f"{symbol.name} = {name} % {divisor}")
            rest = f"{dimension.name}_{number}" if number > 1 else first.name
            lines.append(f"{rest} = {name} // {divisor}")
            name = rest

    # --- phases ------------------------------------------------------------------------------

    def _barrier(self, part: OnlinePass) -> None:
        """What other threads of the program wrote in an earlier pass must have arrived."""
        scalars = [scalar_of(s) for s in (*part.body, *part.row)]
        scalars += [pair.value for pair in part.pairs]
        read = {load.buffer for scalar in scalars for load in loads(scalar)}
        if read & self.written:
            self.lines.append("tl.debug_barrier()")
            self.written.clear()

    def _pass(self, number: int, part: OnlinePass, walked: bool) -> None:
        folds: list[TritonFold] = []
        back = number % 2 == 1
        self.scope.neighbours = find_neighbours(part.body, self.tiling)
        waiting: dict[int, TritonTerm] = {}
        for place, statement in enumerate(part.body):
            if isinstance(statement, Store):
                self._store_beside(part.body, place, waiting)
                continue
            fold = TritonFold(statement, f"a{number}_{len(folds)}", self.scope, *self._axes(), back)
            folds.append(fold)
            if walked:
                fold.start()
                fold.step()
            else:
                self.scope.local[statement.target] = fold.held()
        if self.meetings is not None:
            self.meetings.meet(folds, part.pairs, self._axes())
        pairs = [] if self.meetings is not None else self._pairs(number, part)
        self._flush()
        if not walked:
            return
        self._loop(back, any(s.position is not None for s in (f.statement for f in folds)))
        local = self.scope.local
        for fold in folds:
            local[fold.statement.target] = fold.finish()
        for pair_fold in pairs:
            local.update(zip(pair_fold.targets, pair_fold.finish()))
        self._flush()

    def _pairs(self, number: int, part: OnlinePass) -> list[PairFold]:
        """Of a pass over a walked row, begun and with a block folded into them."""
        pairs: list[PairFold] = []
        for pair in part.pairs:
            assert isinstance(pair, Pair)
            name = f"b{number}_{len(pairs)}"
            pairs.append(PairFold(pair, name, self.scope, *self._axes(), self._block()))
            pairs[-1].start()
            pairs[-1].step()
        return pairs

    def _axes(self) -> tuple[int, Dimensions, Dimensions]:
        """The axis of what is reduced, the dimensions of rows, and all."""
        names = [d.name for d in self.tiling.axes]
        everything = frozenset(names)
        return names.index(self.tiling.reduced), everything - {self.tiling.reduced}, everything

    def _block(self) -> int:
        reduced = self._reduced
        return 0 if reduced is None else reduced.block

    def _loop(self, back: bool, in_order: bool) -> None:
        """The lines of the loop so far, as one walk over the row. Walking back, it begins with
        what the walk before read last, which the cache still has. Of a long row, the blocks that
        hold nothing but points need no mask; those at its ends are walked by themselves."""
        reduced = self._reduced
        assert reduced is not None
        lines, sizes = self.scope.end_loop(), self.scope.sizes
        masked: list[str] = []
        self._points(reduced, "r_start + r_lane", masked)
        stages = f"num_stages={self.tiling.stages}"
        if not in_order and _has_ends(self.tiling):
            self._ends(reduced, masked + lines)
            first = "RB" if reduced.shift else "0"
            self._walk(first, "r_whole", f"RB, {stages}", back, self._unmasked(masked) + lines)
            return
        count = operand_text(_blocks(reduced), sizes)
        limit = "r_end" if reduced.shift else index_text(reduced.size, sizes)
        self._walk("0", f"{count} * RB" if back else limit, f"RB, {stages}", back, masked + lines)

    def _walk(self, first: str, limit: str, step: str, back: bool, body: Sequence[str]) -> None:
        """A loop over blocks; back: from the last one to the first."""
        if back:
            self.lines.append(f"for r_turn in tl.range({first}, {limit}, {step}):")
            self.lines.append(f"    r_start = {limit} - RB + {first} - r_turn")
        else:
            self.lines.append(f"for r_start in tl.range({first}, {limit}, {step}):")
        self.lines += [f"    {line}" for line in body]

    def _ends(self, reduced: Dimension, body: Sequence[str]) -> None:
        """The blocks that are not full: the first, where rows begin anywhere, and the last."""
        size = index_text(reduced.size, self.scope.sizes)
        if reduced.shift:
            self.lines.append(f"r_whole = (r_shift + {size}) // RB * RB")
            self._walk("0", "r_end", "r_whole", False, body)
        else:
            self.lines.append(f"r_whole = {size} // RB * RB")
            self._walk("r_whole", size, "RB", False, body)

    def _unmasked(self, lines: Sequence[str]) -> list[str]:
        """The lines that say where points are, of a block of which every one exists."""
        everywhere = f"tl.full({self.scope.shape(frozenset('r'))}, True, tl.int1)"
        return [
            f"{name} = {everywhere}" if name in ("rm", "rc") else line
            for line in lines
            for name in [line.split(" = ", 1)[0]]
        ]

    def _store(self, statement: Store, only: str = "") -> None:
        if isinstance(statement.value, Scatter):
            self.scope.scatter(statement.target, statement.coordinates, statement.value)
            return
        self.scope.store(statement.target, statement.coordinates, self._value(statement), only)

    def _store_beside(
        self, body: Sequence[Store | Accumulate], number: int, waiting: dict[int, TritonTerm]
    ) -> None:
        """Write what a statement of a pass computes, together with that of the one whose target is
        beside it. waiting: values of those that are written later, by their numbers."""
        pairs, statement = self.scope.neighbours.stores, body[number]
        assert isinstance(statement, Store)
        if number in pairs.values():
            waiting[number] = self._value(statement)
            return
        first = body[pairs[number]] if number in pairs else None
        if not isinstance(first, Store):
            self._store(statement)
            return
        values = (waiting.pop(pairs[number]), self._value(statement))
        self.scope.store_both((first, statement), values)

    def _value(self, statement: Store) -> TritonTerm:
        return self.scope.emit(statement.value)

    def _flush(self) -> None:
        self.lines += self.scope.lines[0]
        self.scope.lines[0].clear()


# --- private ---------------------------------------------------------------------------------


def _has_ends(tiling: Tiling) -> bool:
    """Whether a row is so many blocks long that those at its ends are walked by themselves."""
    walked = next(d for d in tiling.dimensions if d.walked)
    size = constant_value(walked.size)
    alone = tiling.axes == (walked,) and not walked.is_exact
    return alone and size is not None and size >= _LONG_WALK * walked.block


def _blocks(dimension: Dimension) -> Expr:
    if not dimension.block:
        return dimension.size
    points = dimension.size + max(dimension.shift - 1, 0)
    return floor_div(points + (dimension.block - 1), dimension.block)
