"""A schedule as Python that runs alone: kernel by kernel, each phase over a grid of its points.

    kernel k0: rows i0 < 4
      for r0 < 8:
        t0 sum= b0[i0, r0]
      then:
        b1[i0] = exp(t0[i0])

    ->

    i0, r0 = grid(4, 8)
    t0 = fold('sum', b0[i0, r0], {1: 8}, torch.float32)
    b1[i0] = torch.exp(t0)

A value of a row or of a scratch array is a tensor over the kernel's grid. In which order tasks run,
lanes, chunks, and where the arena has a buffer change no value: they are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from braze.diagnose.loop_script import ScriptLines
from braze.diagnose.python_scalars import (
    TextNames,
    index_text,
    place_text,
    scalar_text,
    share,
    size_text,
    sizes_text,
    view_text,
)
from braze.interop.fx_graph import NotExpressible
from braze.ir.kernels.loops import Buffer, BufferView, Load, Scalar, Scatter
from braze.ir.kernels.print_schedule import print_step
from braze.ir.kernels.scalars import loads, walk
from braze.ir.kernels.schedule import (
    Accumulate,
    AttentionGradients,
    AttentionProducts,
    Column,
    ComputedMatrix,
    Kernel,
    Loop,
    Matrix,
    Phase,
    Product,
    Schedule,
    Store,
    origins_of,
)
from braze.shapes.expr import Expr, Symbol, as_expr, symbols


def schedule_script(schedule: Schedule) -> str:
    """The function `program(inputs)`, as `loop_script` gives it. Raises NotExpressible."""
    lines = ScriptLines(schedule.sizes)
    lines.begin(schedule.inputs, [buffer for buffer, _ in schedule.constants])
    for step in schedule.steps:
        if isinstance(step, Kernel):
            _KernelLines(step, lines).write()
        else:
            lines.call(step.call)
    lines.end(schedule.outputs, schedule.mutations)
    return lines.text()


# --- private ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _KernelLines:
    """One kernel. values: buffers that are in no memory, and their names; places: where those
    were stored that have coordinates, each the dimension of a symbol or an expression."""

    kernel: Kernel
    lines: ScriptLines
    values: dict[Buffer, str] = field(default_factory=dict)
    places: dict[Buffer, list[Any]] = field(default_factory=dict)

    def write(self) -> None:
        kernel = self.kernel
        for text in print_step(kernel):
            self.lines.comment(text)
        for origin in origins_of(kernel):
            self.lines.comment(f"  {origin.file}:{origin.line} {origin.call}".rstrip())
        self.lines.make(kernel.memory)
        if kernel.product is not None:
            self._multiply(kernel.product)
        if kernel.attention is not None:
            self._attend(kernel.attention)
        for phase in kernel.phases:
            self._phase(phase)
        for column in kernel.columns:
            self._column(column)

    # --- phases ------------------------------------------------------------------------------

    def _grid(self, loops: Sequence[Loop]) -> TextNames:
        """The indices of the rows and of loops. Grids of a kernel have as many dimensions."""
        kernel = self.kernel
        rows = kernel.rows if kernel.attention is None else kernel.rows[:-1]
        every = [*rows, *loops]
        most = max([len(phase.loops) for phase in kernel.phases], default=0)
        spare = len(rows) + most - len(every)
        names = [*[symbol.name for symbol, _ in every], *["_"] * spare]
        sizes = [*[size_text(size, self.lines.names) for _, size in every], *["1"] * spare]
        if names:
            targets = ", ".join(names) + ("," if len(names) == 1 else "")
            self.lines.lines.append(f"{targets} = grid({', '.join(sizes)})")
        dims = {symbol: dim for dim, (symbol, _) in enumerate(every)}
        return TextNames(self.lines.names, dict(self.values), dims)

    def _phase(self, phase: Phase) -> None:
        loops = phase.loops
        names = self._grid(loops)
        over = {names.dims[symbol]: size_text(size, self.lines.names) for symbol, size in loops}
        for statement in phase.body:
            if isinstance(statement, Accumulate):
                self._accumulate(statement, over, names)
            else:
                self._store(statement, names, loops)
            names = self._with_values(names)
        for store in phase.row:
            self._store(store, names, ())
            names = self._with_values(names)

    def _with_values(self, names: TextNames) -> TextNames:
        return TextNames(names.sizes, dict(self.values), names.dims)

    def _value(self, scalar: Scalar, names: TextNames) -> str:
        for node in loads(scalar):
            stored = self.places.get(node.buffer)
            if node.buffer in self.values and stored not in (None, _dims(node.coordinates, names)):
                raise NotExpressible(f"{node.buffer} is read elsewhere than it is stored")
        self.lines.lines += share([scalar], names)
        return scalar_text(scalar, names)

    def _accumulate(self, fold: Accumulate, over: dict[int, str], names: TextNames) -> None:
        body = self._value(fold.body, names)
        dims = ", ".join([f"{dim}: {size}" for dim, size in over.items()])
        text = f"fold({fold.kind!r}, {body}, {{{dims}}}, {fold.dtype}"
        if fold.position is not None:
            text += f", {index_text(fold.position, names)}"
        self._name(fold.target, f"{text})")
        if fold.target in self.kernel.memory:
            raise NotExpressible(f"{fold.target} is folded in memory")

    def _store(self, store: Store, names: TextNames, loops: Sequence[Loop]) -> None:
        target = store.target
        if isinstance(store.value, Scatter):
            every = [*self.kernel.rows, *loops]
            points = sizes_text([size for _, size in every], self.lines.names)
            self._value(store.value.value, names)
            self.lines.scatter(target, store.value, store.coordinates, names, points)
            return
        text = self._value(store.value, names)
        if target not in self.kernel.memory:
            self.places[target] = _dims(store.coordinates, names)
            self._name(target, text)
            return
        self.lines.lines.append(f"{target}[{place_text(store.coordinates, names)}] = {text}")

    def _name(self, target: Buffer, text: str) -> None:
        self.values[target] = f"{target}_value"
        self.lines.lines.append(f"{target}_value = {text}")

    def _column(self, column: Column) -> None:
        used = {symbol for node in walk(column.body) for symbol in _symbols(node)}
        rows = {symbol for symbol, _ in self.kernel.rows}
        loops = next(
            (p.loops for p in self.kernel.phases if used - rows <= {s for s, _ in p.loops}), None
        )
        if loops is None:
            raise NotExpressible(f"{column.target} is a column of several phases")
        names = self._grid(loops)
        value = self._value(column.body, names)
        sizes = [
            sizes_text([n for _, n in each], self.lines.names) for each in (self.kernel.rows, loops)
        ]
        text = f"column({value}, {sizes[0]}, {sizes[1]}, {self.kernel.block})"
        self.lines.lines.append(
            f"{column.target}.tensor.copy_({text}.reshape({column.target}.tensor.shape))"
        )

    # --- products ----------------------------------------------------------------------------

    def _multiply(self, product: Product) -> None:
        pairs = zip((product.first, product.second), product.computed, strict=True)
        first, second = [self._factor(view, computed, product) for view, computed in pairs]
        shape = sizes_text(product.target.shape, self.lines.names)
        self.lines.lines.append(f"{product.target} = Memory(({first} @ {second}).expand({shape}))")

    def _factor(self, view: BufferView, computed: ComputedMatrix | None, product: Product) -> str:
        dtype = product.target.dtype
        if computed is None:
            return f"{view_text(view, self.lines.names)}.to({dtype})"
        self.lines.grid(computed.loops)
        dims = {symbol: dim for dim, (symbol, _) in enumerate(computed.loops)}
        names = TextNames(self.lines.names, {}, dims)
        value = self._value(computed.value, names)
        shape = sizes_text([size for _, size in computed.loops], self.lines.names)
        self.lines.lines.append(f"{view.buffer}_made = ({value}).expand({shape}).to({dtype})")
        return f"{view.buffer}_made"

    # --- attention ---------------------------------------------------------------------------

    def _attend(self, attention: AttentionProducts | AttentionGradients) -> None:
        if isinstance(attention, AttentionGradients):
            self._gradients(attention)
            return
        batch, query = self.kernel.rows[:-1], self.kernel.rows[-1]
        self._tile(attention.scores, attention.query, attention.keys, query, attention.keys_loop)
        loops = (*batch, query, attention.keys_loop)
        score = self._over(loops, attention.score)
        text = f"softmax({score}, {attention.empty_is_zero})"
        self._matrix("values", attention.values, attention.keys_loop)
        (store,) = [each for phase in self.kernel.phases for each in phase.body][:1]
        self._name(store.target, f"{text} @ values")
        if attention.most is not None:
            self._name(attention.most, f"{score}.amax(-1, keepdim=True)")
        if attention.sums is not None:
            self._name(
                attention.sums,
                f"({score} - {score}.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)",
            )

    def _gradients(self, attention: AttentionGradients) -> None:
        batch = self.kernel.rows[:-1]
        for product in attention.products:
            self._tile(
                product.target, product.rows, product.columns, attention.queries, attention.keys
            )
        own = self.kernel.rows[-1][0]
        for each in attention.sums:
            weight = self._over((*batch, attention.queries, attention.keys), each.weight)
            is_query = own == attention.queries[0]
            walked = attention.keys if is_query else attention.queries
            self._matrix("matrix", each.matrix, walked)
            weight = weight if is_query else f"{weight}.mT"
            self._name(each.target, f"{weight} @ matrix")

    def _over(self, loops: Sequence[Loop], scalar: Scalar) -> str:
        """The name of a scalar over loops, whole."""
        self.lines.grid(loops)
        dims = {symbol: dim for dim, (symbol, _) in enumerate(loops)}
        text = self._value(scalar, TextNames(self.lines.names, {}, dims))
        shape = sizes_text([size for _, size in loops], self.lines.names)
        self.lines.lines.append(f"weights = ({text}).expand({shape})")
        return "weights"

    def _tile(self, target: Buffer, rows: Matrix, columns: Matrix, m: Loop, n: Loop) -> None:
        self._matrix("first", rows, m)
        self._matrix("second", columns, n)
        shape = sizes_text(target.shape, self.lines.names)
        self.lines.lines.append(f"{target} = Memory((first @ second.mT).reshape({shape}))")

    def _matrix(self, name: str, matrix: Matrix, rows: Loop) -> None:
        """The elements of a matrix, in float32: the batch, rows and columns."""
        row, column = Symbol("row"), Symbol("column")
        loops = [*self.kernel.rows[:-1], (row, rows[1]), (column, matrix.width)]
        self.lines.grid(loops)
        names = TextNames(self.lines.names, {}, {symbol: n for n, (symbol, _) in enumerate(loops)})
        place = index_text(matrix.place(as_expr(row), as_expr(column)), names)
        shape = sizes_text([size for _, size in loops], self.lines.names)
        self.lines.lines.append(
            f"{name} = {matrix.buffer}.at(index({place}).expand({shape})).float()"
        )


def _dims(coordinates: Sequence[object], names: TextNames) -> list[object]:
    """Coordinates, symbols of indices by their dimension: of two phases they may differ."""
    numbered = {symbol: f"dim{dim}" for symbol, dim in names.dims.items()}
    known = TextNames({**names.sizes, **numbered}, {}, {})
    return [index_text(each, known) if isinstance(each, Expr) else each for each in coordinates]


def _symbols(node: Scalar) -> set[Symbol]:
    if isinstance(node, Load):
        return set().union(*[symbols(c) for c in node.coordinates if isinstance(c, Expr)])
    expr = getattr(node, "expr", None)
    return set() if expr is None else set(symbols(expr))
