"""Scalar expressions to single-assignment Triton lines.

Each value is a number, or a block with an axis for each blocked dimension that it depends on (the
others have length one). What does not depend on a walked dimension stands before its loop. An
expression is emitted once: the text of its right-hand side is its key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from braze.codegen.comparisons import decide_comparison
from braze.codegen.triton.index import index_text
from braze.codegen.triton.operators import (
    BYTES,
    HALVES,
    cast_text,
    form,
    literal_text,
)
from braze.codegen.triton.pairs import NO_NEIGHBOURS, Neighbours, PairLoad, pair_load
from braze.codegen.triton.runs import regrouped
from braze.codegen.triton.tiling import Tiling
from braze.frozen import frozen
from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    Cast,
    Guarded,
    Index,
    InRange,
    Literal,
    Load,
    Reduce,
    Scalar,
    Scatter,
)
from braze.ir.kernels.schedule import Store, offset
from braze.shapes.expr import Expr, Symbol, as_expr, symbols

Dimensions = frozenset[str]
NUMBER: Dimensions = frozenset()


@frozen
class TritonTerm:
    """A name or a constant, and the blocked dimensions that it varies along."""

    text: str
    along: Dimensions


@dataclass(slots=True)
class TritonScope:
    """forms: of operators on floats, instead of the usual ones.
    pointers: names of the pointers of buffers; local: values of the row by their buffer;
    sizes: names of size symbols. lines: those of the function, then those of the loop. reads_on:
    whether what is read of a walked row is read once more by the next walk; None: there is but one.
    totals: names of sums of exponentials of nothing above zero, one of them of zero: from 1 to the
    length of a row, or no number. multiplies: such exponentials are divided by them as products.
    prefix: of the names of values; another where a function has several scopes. keeps_fixed: what
    does not change in a loop is added up before it in an offset. narrow_indices: what becomes a
    float is no 64 bits wide before. neighbours: what is read two at a time.
    """

    tiling: Tiling
    pointers: Mapping[Buffer, str]
    sizes: Mapping[Symbol, str]
    forms: Mapping[str, str] = field(default_factory=dict)
    local: dict[Buffer, TritonTerm] = field(default_factory=dict)
    lines: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    known: dict[str, TritonTerm] = field(default_factory=dict)
    stored: dict[tuple[Buffer, tuple[Expr | Scalar, ...]], TritonTerm] = field(default_factory=dict)
    checked: bool = False
    reads_on: bool | None = None
    totals: set[str] = field(default_factory=set)
    multiplies: bool = False
    prefix: str = "v"
    keeps_fixed: bool = False
    narrow_indices: bool = False
    neighbours: Neighbours = NO_NEIGHBOURS
    along: dict[Symbol, Dimensions] = field(default_factory=dict)
    walked: Dimensions = NUMBER
    _made: int = 0
    _memo: dict[tuple[int, str], TritonTerm] = field(default_factory=dict)
    _kept: list[Scalar] = field(default_factory=list)

    def __post_init__(self) -> None:
        for dimension in self.tiling.dimensions:
            along = frozenset({dimension.name}) if dimension.block else NUMBER
            self.along.update({symbol: along for symbol, _ in dimension.loops})
            if dimension.walked:
                self.walked = along

    def emit(self, scalar: Scalar, guard: TritonTerm | None = None) -> TritonTerm:
        """The term that holds the scalar's value; loads are masked by `guard`, too."""
        key = (id(scalar), guard.text if guard else "")
        found = self._memo.get(key)
        if found is None:
            found = _EMITTERS[type(scalar)](self, scalar, guard)
            self._memo[key] = found
            self._kept.append(scalar)
        return found

    def emit_filled(self, scalar: Scalar, fill: str) -> TritonTerm | None:
        """The value of something that is only read (and widened), `fill` where there is no point;
        None where it is more."""
        load = scalar.operand if isinstance(scalar, Cast) else scalar
        if not isinstance(load, Load) or not scalar.dtype.is_floating_point:
            return None
        plain = load.buffer not in self.local and (load.buffer, load.coordinates) not in self.stored
        is_float = load.dtype.is_floating_point and load.dtype not in BYTES
        if not plain or not is_float or _is_based(self, load):
            return None
        term = _load(self, load, None, f", other={fill}")
        text = cast_text(term.text, load.dtype, scalar.dtype)
        return term if text == term.text else self.assign(text, term.along)

    def emit_gathered(self, scalar: Scalar) -> TritonTerm | None:
        """The value of an element of memory, or zero where a condition does not hold, or where
        there is no point; None where it is more."""
        guard = None
        if isinstance(scalar, Guarded):
            if not isinstance(scalar.other, Literal) or scalar.other.value != 0:
                return None
            guard, scalar = self.emit(scalar.condition), scalar.value
        if not isinstance(scalar, Load) or scalar.dtype not in (*HALVES, torch.float32):
            return None
        return _load(self, scalar, guard, ", other=0.0")

    def assign(self, text: str, along: Dimensions) -> TritonTerm:
        """A name for the text's value, made once."""
        found = self.known.get(text)
        if found is None:
            found = self.known[text] = TritonTerm(f"{self.prefix}{self._made}", along)
            self._made += 1
            self.add(f"{found.text} = {text}", along)
        return found

    def add(self, line: str, along: Dimensions) -> None:
        """A line, in the loop if it depends on what is walked."""
        self.lines[bool(along & self.walked)].append(line)

    def index(self, expr: Expr) -> TritonTerm:
        """An index expression as text (not assigned)."""
        found = [self.along.get(symbol, NUMBER) for symbol in symbols(expr)]
        if len(self.tiling.dimensions) == 1 and found:
            (dimension,) = self.tiling.dimensions
            along = frozenset({dimension.name})

            def name(inside: int, width: int | None) -> Symbol:
                text = dimension.name if inside == 1 else f"{dimension.name} // {inside}"
                if width is not None:
                    text = f"{text} % {width}"
                plain = text == dimension.name
                return Symbol(text if plain else self.assign(text, along).text, 0, None)

            expr = regrouped(expr, dimension.loops, name)
        return TritonTerm(index_text(expr, self.sizes), NUMBER.union(*found))

    def place(self, expr: Expr) -> TritonTerm:
        """An offset, to stand behind a pointer and a plus sign. Where programs share rows that are
        one run of memory, what is the row's comes first: its sum with the pointer is in registers
        once, not once a read (68 a thread of a layer norm, now 62: a processor has room for four
        programs, not three). Of several runs offsets are what is kept (76 a thread, now 64)."""
        if self.keeps_fixed:
            return self._sum(expr)
        runs = [d for d in self.tiling.dimensions if d.name == self.tiling.reduced]
        if self.tiling.parts == 1 or len(runs[0].loops) > 1:
            return self.index(expr)
        fixed = [term for term in expr.terms if not self._along(Expr((term,)))]
        moving = [term for term in expr.terms if term not in fixed]
        if not fixed or not moving:
            return self.index(expr)
        first, second = (self.index(Expr(tuple(terms))) for terms in (fixed, moving))
        return TritonTerm(f"{first.text} + {second.text}", second.along)

    def _sum(self, expr: Expr) -> TritonTerm:
        """An offset by what changes in the loop and what does not, which is added up before it."""
        fixed = [term for term in expr.terms if not self._along(Expr((term,))) & self.walked]
        moving = [term for term in expr.terms if term not in fixed]
        if not fixed or not moving:
            return self.index(expr)
        first, second = (self.index(Expr(tuple(terms))) for terms in (fixed, moving))
        first = self.assign(first.text, first.along)
        return TritonTerm(f"({first.text} + {second.text})", first.along | second.along)

    def _along(self, expr: Expr) -> Dimensions:
        return NUMBER.union(*(self.along.get(symbol, NUMBER) for symbol in symbols(expr)))

    def mask(self, along: Dimensions, guard: TritonTerm | None = None) -> str:
        """The condition that points exist, of all dimensions given, and that the guard holds."""
        parts = [f"{d.name}m" for d in self.tiling.dimensions if d.name in along and not d.is_exact]
        return " & ".join([*parts, *([guard.text] if guard else [])])

    def shape(self, along: Dimensions) -> str:
        """The shape of a block."""
        parts = [f"{d.name.upper()}B" if d.name in along else "1" for d in self.tiling.axes]
        return f"[{', '.join(parts)}]"

    def broadcast(self, term: TritonTerm, along: Dimensions) -> str:
        """The term's text with axes for all dimensions given."""
        if term.along >= along:
            return term.text
        text = term.text
        if text.lstrip("-").isdigit():
            text = f"tl.full((), {text}, tl.int64)"
        return f"tl.broadcast_to({text}, {self.shape(along | term.along)})"

    def scatter(self, target: Buffer, coordinates: tuple[Expr, ...], scatter: Scatter) -> None:
        """Write to, or add to, elements whose places are looked up: once for every point."""
        value = self.emit(scatter.value)
        place = _looked_up(self, offset(target, coordinates), scatter.positions, target, None)
        along = frozenset([d.name for d in self.tiling.axes if d.loops])
        pointer = f"{self.pointers[target]} + {self.broadcast(place, along)}"
        mask = self.mask(along)
        given = f"{pointer}, {self.broadcast(value, along)}{f', {mask}' if mask else ''}"
        if scatter.kind == "add":
            self.add(f"tl.atomic_add({given}, sem='relaxed')", along)
        else:
            self.add(f"tl.store({given})", along)

    def store(
        self, target: Buffer, coordinates: tuple[Expr, ...], value: TritonTerm, only: str = ""
    ) -> None:
        """Write to memory, if the buffer is there; a later load at the same place is the value.
        only: of programs that have the same value, the condition that holds in one."""
        pointer = self.pointers.get(target)
        if pointer is not None:
            place = self.place(offset(target, coordinates))
            along = place.along | value.along
            text = self.broadcast(place, along) if along else place.text
            mask = " & ".join(part for part in (self.mask(along), only) if part)
            tail = f", {mask}" if mask else ""
            if along & self.walked and self.reads_on is not None:
                tail += ", eviction_policy='evict_first'"
            self.add(f"tl.store({pointer} + {text}, {value.text}{tail})", along)
            self._forget(lambda key: f"tl.load({pointer} + " in key)
            for place_ in [p for p in self.stored if p[0] is target]:
                del self.stored[place_]
        self.stored[target, coordinates] = value
        self._memo.clear()

    def store_both(self, statements: Sequence[Store], values: Sequence[TritonTerm]) -> None:
        """Write to two neighbours in memory, the first of which has an even place."""
        first = statements[0]
        pointer = self.pointers.get(first.target)
        if pointer is not None:
            along = frozenset({self.tiling.dimensions[0].name})
            place = self.place(offset(first.target, first.coordinates))
            given = ", ".join([self.broadcast(value, along) for value in values])
            at = _addresses(pointer, self.broadcast(place, along), self.mask(along))
            self.add(f"bz_store_both({at[0]}, {given}{at[1]})", along)
            self._forget(lambda key: f"tl.load({pointer} + " in key)
            for place_ in [p for p in self.stored if p[0] is first.target]:
                del self.stored[place_]
        for statement, value in zip(statements, values, strict=True):
            self.stored[statement.target, statement.coordinates] = value
        self._memo.clear()

    def end_loop(self) -> list[str]:
        """The lines of the loop; its values are gone."""
        lines = list(self.lines[1])
        self.lines[1].clear()
        gone = {key for key, term in self.known.items() if term.along & self.walked}
        self._forget(lambda key: key in gone)
        for place in [p for p, term in self.stored.items() if term.along & self.walked]:
            del self.stored[place]
        self._memo.clear()
        return lines

    def _forget(self, is_gone: Callable[[str], bool]) -> None:
        for key in [key for key in self.known if is_gone(key)]:
            del self.known[key]
        self._memo.clear()


# --- private ---------------------------------------------------------------------------------


def _literal(scope: TritonScope, scalar: Literal, guard: TritonTerm | None) -> TritonTerm:
    return scope.assign(literal_text(scalar), NUMBER)


def _index(scope: TritonScope, scalar: Index, guard: TritonTerm | None) -> TritonTerm:
    term = scope.index(scalar.expr)
    if not symbols(scalar.expr):
        return scope.assign(f"tl.full((), {term.text}, tl.int64)", NUMBER)
    return scope.assign(f"({term.text}).to(tl.int64)", term.along)


def _load(
    scope: TritonScope, scalar: Load, guard: TritonTerm | None, other: str = ""
) -> TritonTerm:
    stored = scope.stored.get((scalar.buffer, scalar.coordinates))
    if stored is not None:
        return stored
    local = scope.local.get(scalar.buffer)
    if local is not None:
        return local
    pair = pair_load(scalar, scope.tiling)
    if pair is not None and not other:
        return _half(scope, scalar, pair)
    if guard is None and not other and scope.neighbours.loads:
        neighbour = _neighbour(scope, scalar)
        if neighbour is not None:
            return neighbour
    place = _place(scope, scalar, guard)
    along = place.along if guard is None else place.along | guard.along
    if _is_based(scope, scalar):
        text, mask = "r_base + r_walk", "rc" if guard is None else f"rc & {guard.text}"
    else:
        text = scope.broadcast(place, along) if along else place.text
        mask = scope.mask(along, guard)
    tail = f", {mask}{other}" if mask else ""
    if along & scope.walked and scope.reads_on is not None:
        tail += f", eviction_policy='evict_{'last' if scope.reads_on else 'first'}'"
    return scope.assign(f"tl.load({scope.pointers[scalar.buffer]} + {text}{tail})", along)


def _half(scope: TritonScope, load: Load, pair: PairLoad) -> TritonTerm:
    """One of two neighbours for both points: they are read together, whatever the guard says."""
    place = scope.index(pair.place)
    mask = scope.mask(place.along)
    text = f"tl.load({scope.pointers[load.buffer]} + {scope.broadcast(place, place.along)}"
    both = scope.assign(f"{text}{f', {mask}' if mask else ''})", place.along)
    name = "bz_pair_second" if pair.is_second else "bz_pair_first"
    return scope.assign(f"{name}({both.text})", place.along)


def _neighbour(scope: TritonScope, load: Load) -> TritonTerm | None:
    """An element that is read with the one beside it, if it is such."""
    if not all(isinstance(c, Expr) for c in load.coordinates):
        return None
    found = scope.neighbours.loads.get((load.buffer, offset(load.buffer, load.coordinates)))
    if found is None:
        return None
    place, is_second = found
    term = scope.place(place)
    text = scope.broadcast(term, term.along)
    at, mask = _addresses(scope.pointers[load.buffer], text, scope.mask(term.along))
    both = scope.assign(f"tl.load({at}{mask})", term.along)
    return scope.assign(f"bz_{'second' if is_second else 'first'}({both.text})", term.along)


def _addresses(pointer: str, place: str, mask: str) -> tuple[str, str]:
    """The addresses of two neighbours for each point, and what masks them."""
    at = f"{pointer} + ({place})[:, None] + tl.arange(0, 2)[None, :]"
    return at, f", ({mask})[:, None]" if mask else ""


def _is_based(scope: TritonScope, load: Load) -> bool:
    """Whether the load runs along the row from where rows begin: what is read beside the row's
    ends, in the same 16 bytes, does no harm and is not used."""
    base = scope.tiling.base
    if base is None or not all(isinstance(c, Expr) for c in load.coordinates):
        return False
    reduced = next(d for d in scope.tiling.dimensions if d.name == scope.tiling.reduced)
    return offset(load.buffer, load.coordinates) - base == as_expr(reduced.loops[0][0])


def _place(scope: TritonScope, load: Load, guard: TritonTerm | None) -> TritonTerm:
    """The element's offset: index expressions summed symbolically, loaded indices added."""
    base = offset(load.buffer, load.coordinates)
    positions = [None if isinstance(c, Expr) else c for c in load.coordinates]
    return _looked_up(scope, base, positions, load.buffer, guard)


def _looked_up(
    scope: TritonScope,
    plain: Expr,
    positions: Sequence[Scalar | None],
    buffer: Buffer,
    guard: TritonTerm | None,
) -> TritonTerm:
    """An offset to which computed coordinates are added, None for one that is in it."""
    parts: list[str] = []
    along = NUMBER
    for coordinate, stride in zip(positions, buffer.stride):
        if coordinate is None:
            continue
        term = scope.emit(coordinate, guard)
        step = scope.index(as_expr(stride)).text
        text = term.text if scope.tiling.wide else f"{term.text}.to(tl.int32)"
        parts.append(text if step == "1" else f"{text} * {step}")
        along |= term.along
    base = scope.index(plain) if parts else scope.place(plain)
    text = " + ".join([base.text, *parts])
    return TritonTerm(f"({text})" if parts else text, along | base.along)


def _apply(scope: TritonScope, scalar: Apply, guard: TritonTerm | None) -> TritonTerm:
    small = _index_comparison(scope, scalar)
    if small is not None:
        return small
    operands = [scope.emit(operand, guard) for operand in scalar.operands]
    dtype = scalar.operands[-1].dtype
    template = form(scalar.op, dtype)
    if dtype in (torch.float32, torch.float64):
        template = scope.forms.get(scalar.op, template)
    if scalar.op == "truediv" and operands[1].text in scope.totals and _is_exp(scalar.operands[0]):
        return _share(scope, *operands)
    if template is None:
        raise NotImplementedError(f"Triton has no {scalar.op} on {dtype}; ask `supports` first")
    text = template.format(*(term.text for term in operands))
    if scalar.dtype.itemsize < 4 and scalar.dtype not in (
        torch.bool,
        *HALVES,
        *BYTES,
    ):
        text = cast_text(f"({text})", torch.int32, scalar.dtype)
    return scope.assign(text, NUMBER.union(*(term.along for term in operands)))


def _is_exp(scalar: Scalar) -> bool:
    return isinstance(scalar, Apply) and scalar.op == "exp" and scalar.dtype == torch.float32


def _share(scope: TritonScope, part: TritonTerm, total: TritonTerm) -> TritonTerm:
    """part / total. The total is within range, so that a product with its reciprocal, mended by
    what is left of the division, is off by hardly more than the rounding of the quotient."""
    along = part.along | total.along
    if not scope.multiplies:
        return scope.assign(f"libdevice.div_rn({part.text}, {total.text})", along)
    inverse = scope.assign(f"1.0 / {total.text}", total.along)
    about = scope.assign(f"{part.text} * {inverse.text}", along)
    if "truediv" in scope.forms:
        return about
    left = f"libdevice.fma(-{about.text}, {total.text}, {part.text})"
    return scope.assign(f"libdevice.fma({left}, {inverse.text}, {about.text})", along)


_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _index_comparison(scope: TritonScope, scalar: Apply) -> TritonTerm | None:
    """Comparisons of index expressions, in the type of the kernel's indices."""
    if scalar.op not in _COMPARISONS:
        return None
    exprs = [_as_index(operand) for operand in scalar.operands]
    left, right = exprs
    if left is None or right is None:
        return None
    decided = decide_comparison(scalar.op, left, right)
    if decided is not None:
        return scope.assign(f"tl.full((), {decided}, tl.int1)", NUMBER)
    terms = [scope.index(expr) for expr in (left, right)]
    text = f"({terms[0].text} {_COMPARISONS[scalar.op]} {terms[1].text})"
    return scope.assign(text, terms[0].along | terms[1].along)


def _as_index(scalar: Scalar) -> Expr | None:
    if isinstance(scalar, Index):
        return scalar.expr
    if isinstance(scalar, Literal) and scalar.dtype == torch.int64:
        small = -(2**31) < scalar.value < 2**31
        return as_expr(int(scalar.value)) if small else None
    return None


def _cast(scope: TritonScope, scalar: Cast, guard: TritonTerm | None) -> TritonTerm:
    if isinstance(scalar.operand, Index) and scalar.dtype == torch.float32 and scope.narrow_indices:
        term = scope.index(scalar.operand.expr)
        if symbols(scalar.operand.expr):
            return scope.assign(f"({term.text}).to(tl.float32)", term.along)
    operand = scope.emit(scalar.operand, guard)
    text = cast_text(operand.text, scalar.operand.dtype, scalar.dtype)
    return operand if text == operand.text else scope.assign(text, operand.along)


def _guarded(scope: TritonScope, scalar: Guarded, guard: TritonTerm | None) -> TritonTerm:
    condition = scope.emit(scalar.condition, guard)
    always = {scope.known.get(f"tl.full((), {b}, tl.int1)"): b for b in (True, False)}
    if condition in always:
        return scope.emit(scalar.value if always[condition] else scalar.other, guard)
    value = scope.emit(scalar.value, _both(scope, guard, condition))
    negated = scope.assign(f"~{condition.text}", condition.along)
    other = scope.emit(scalar.other, _both(scope, guard, negated))
    text = f"tl.where({condition.text}, {value.text}, {other.text})"
    return scope.assign(text, condition.along | value.along | other.along)


def _both(scope: TritonScope, guard: TritonTerm | None, condition: TritonTerm) -> TritonTerm:
    if guard is None:
        return condition
    return scope.assign(f"{guard.text} & {condition.text}", guard.along | condition.along)


def _in_range(scope: TritonScope, scalar: InRange, guard: TritonTerm | None) -> TritonTerm:
    operand = scope.emit(scalar.operand, guard)
    size = scope.index(as_expr(scalar.size)).text
    along = operand.along if guard is None else operand.along | guard.along
    inside = f"(({operand.text} >= 0) & ({operand.text} < {size}))"
    mask = scope.mask(along, guard)
    test = f"{inside} | ~({mask})" if mask else inside
    line = f'tl.device_assert({test}, "index out of range")'
    if line not in scope.lines[bool(along & scope.walked)]:
        scope.add(line, along)
    scope.checked = True
    return operand


def _reduce(scope: TritonScope, scalar: Reduce, guard: TritonTerm | None) -> TritonTerm:
    raise TypeError("a reduction reached the generator inside an expression")


_EMITTERS: dict[type, Callable[..., TritonTerm]] = {
    Literal: _literal,
    Index: _index,
    Load: _load,
    Apply: _apply,
    Cast: _cast,
    Guarded: _guarded,
    InRange: _in_range,
    Reduce: _reduce,
}
