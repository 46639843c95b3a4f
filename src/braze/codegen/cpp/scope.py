"""Scalar expressions to single-assignment C++ lines, each at the outermost loop it can stand in.

`Scope` holds the lines of a nest of loops by level: level 0 is the task, level n the n-th loop.
An expression is emitted once: the text of its right-hand side is its key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from braze.codegen.comparisons import decide_comparison
from braze.codegen.cpp.index import index_text
from braze.codegen.cpp.operators import TYPES, cast_text, form, literal_text
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
)
from braze.ir.kernels.schedule import offset
from braze.shapes.expr import (
    Expr,
    Symbol,
    as_expr,
    bounds,
    symbols,
)


@frozen
class CppTerm:
    """A C++ expression without side effects: a name or a constant; the level where it is known."""

    text: str
    level: int


@frozen
class BoundsCheck:
    """What must hold for loads to be in bounds."""

    text: str
    level: int


@dataclass(slots=True)
class CppScope:
    """levels: of loop symbols. local: how buffers of the task are read (row values, arrays);
    pointers: names of the pointers of the others. sizes: names of size symbols. in_turn: points of
    the innermost loop come one after the other."""

    levels: Mapping[Symbol, int]
    depth: int
    pointers: Mapping[Buffer, str]
    local: Mapping[Buffer, Callable[[Load], CppTerm]]
    sizes: Mapping[Symbol, str]
    prefix: str = "v"
    lines: list[list[str]] = field(default_factory=list)
    known: dict[str, CppTerm] = field(default_factory=dict)
    stored: dict[tuple[Buffer, tuple[Expr | Scalar, ...]], CppTerm] = field(default_factory=dict)
    faults: bool = False
    in_turn: bool = False
    _memo: dict[tuple[int, str], CppTerm] = field(default_factory=dict)
    _kept: list[Scalar] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = [[] for _ in range(self.depth + 1)]

    def emit(self, scalar: Scalar, guard: BoundsCheck | None = None) -> CppTerm:
        """The term that holds the scalar's value."""
        key = (id(scalar), guard.text if guard else "")
        found = self._memo.get(key)
        if found is None:
            found = _EMITTERS[type(scalar)](self, scalar, guard)
            self._memo[key] = found
            self._kept.append(scalar)
        return found

    def assign(self, text: str, dtype: torch.dtype, level: int) -> CppTerm:
        """A constant of the value type of `dtype`, made once."""
        found = self.known.get(text)
        if found is None:
            name = f"{self.prefix}{len(self.known)}"
            self.lines[level].append(f"const {TYPES[dtype].value} {name} = {text};")
            found = self.known[text] = CppTerm(name, level)
        return found

    def index(self, expr: Expr) -> CppTerm:
        """An index expression as int64 text (not assigned)."""
        level = max((self.levels.get(s, 0) for s in symbols(expr)), default=0)
        return CppTerm(index_text(expr, self.sizes), level)


# --- private ---------------------------------------------------------------------------------


def _literal(scope: CppScope, scalar: Literal, guard: BoundsCheck | None) -> CppTerm:
    return CppTerm(literal_text(scalar), 0)


def _index(scope: CppScope, scalar: Index, guard: BoundsCheck | None) -> CppTerm:
    term = scope.index(scalar.expr)
    return scope.assign(term.text, torch.int64, term.level)


def _load(scope: CppScope, scalar: Load, guard: BoundsCheck | None) -> CppTerm:
    stored = scope.stored.get((scalar.buffer, scalar.coordinates))
    if stored is not None:
        return stored
    local = scope.local.get(scalar.buffer)
    if local is not None:
        return local(scalar)
    place = _place(scope, scalar, guard)
    text = f"{scope.pointers[scalar.buffer]}[{place.text}]"
    level = place.level if guard is None else max(place.level, guard.level)
    if scalar.dtype == torch.bool:
        text = f"{text} != 0" if guard is None else f"({text} != 0)"
    inside = None if guard is None else _inside(scope, scalar, place, guard)
    if inside is not None:
        inner = f"{scope.pointers[scalar.buffer]}[{inside}]"
        text = f"({inner} != 0)" if scalar.dtype == torch.bool else inner
    elif guard is not None:
        text = f"{guard.text} ? {text} : ({TYPES[scalar.dtype].value})0"
    return scope.assign(text, scalar.dtype, level)


def _inside(scope: CppScope, load: Load, place: CppTerm, guard: BoundsCheck) -> str | None:
    """The element's offset where the guard holds, else some offset in the buffer: such a load
    vectorises where GCC's masked loads do not. None: a masked load of neighbours serves."""
    if not all((bounds(size)[0] or 0) > 0 for size in load.buffer.shape):
        return None
    if not all(isinstance(c, Expr) for c in load.coordinates):
        return None
    whole = offset(load.buffer, load.coordinates)
    for monomial, coefficient in whole.terms:
        symbol = monomial[0] if len(monomial) == 1 else None
        if not isinstance(symbol, Symbol) or scope.levels.get(symbol) != scope.depth:
            continue
        if abs(coefficient) != 1:
            return f"({place.text}) & -(i64){guard.text}"
        rest = whole - as_expr(symbol)
        start = scope.index(rest)
        if coefficient == 1 and max(start.level, guard.level) < scope.depth:
            level = max(start.level, guard.level)
            first = scope.assign(f"{guard.text} ? {start.text} : 0", torch.int64, level)
            return f"{first.text} + {scope.index(as_expr(symbol)).text}"
        return None
    return None


def _place(scope: CppScope, load: Load, guard: BoundsCheck | None) -> CppTerm:
    """The element's offset: index expressions summed symbolically, loaded indices added."""
    parts: list[str] = []
    level = 0
    for coordinate, stride in zip(load.coordinates, load.buffer.stride):
        if isinstance(coordinate, Expr):
            continue
        term = scope.emit(coordinate, guard)
        step = scope.index(as_expr(stride)).text
        parts.append(term.text if step == "1L" else f"{term.text} * {step}")
        level = max(level, term.level)
    base = scope.index(offset(load.buffer, load.coordinates))
    return CppTerm(" + ".join([base.text, *parts]), max(level, base.level))


def _apply(scope: CppScope, scalar: Apply, guard: BoundsCheck | None) -> CppTerm:
    small = _small_comparison(scope, scalar)
    if small is not None:
        return small
    operands = [scope.emit(operand, guard) for operand in scalar.operands]
    known = _decided_conjunction(scalar.op, operands)
    if known is not None:
        return known
    dtype = scalar.operands[-1].dtype
    template = form(scalar.op, dtype)
    if template is None:
        raise NotImplementedError(f"C++ has no {scalar.op} on {dtype}; ask `supports` first")
    level = max(term.level for term in operands)
    if scalar.op == "where":
        template = _choice(scope, scalar.dtype, operands[0], level)
    text = template.format(*(term.text for term in operands))
    if "bad" in template:
        scope.faults = True
        if guard is not None:
            level = max(level, guard.level)
            divisor = scope.assign(f"{guard.text} ? {operands[1].text} : 1", dtype, level)
            text = template.format(operands[0].text, divisor.text)
    if scalar.dtype == torch.bool and dtype != torch.bool:
        text = f"({text})"
    elif scalar.dtype.itemsize < 4 and scalar.dtype != torch.bool and scalar.op != "where":
        text = f"({TYPES[scalar.dtype].value})({text})"
    return scope.assign(text, scalar.dtype, level)


# Unsigned integers, by their bytes.
_MASKS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


def _choice(scope: CppScope, dtype: torch.dtype, condition: CppTerm, level: int) -> str:
    """The template of a choice between two values, made at a level. Where one condition serves all
    lanes of a vector, its mask is made outside of the loop: GCC vectorises no conversion of a bool
    from there."""
    if not condition.level < scope.depth == level:
        return "{0} ? {1} : {2}"
    value, chosen = TYPES[dtype].value, "{0}"
    if dtype != torch.bool:
        kind = _MASKS[dtype.itemsize]
        text = f"({TYPES[kind].value})-({TYPES[kind].value}){condition.text}"
        chosen = scope.assign(text, kind, condition.level).text
    return f"bz_choose({chosen}, ({value}){{1}}, ({value}){{2}})"


def _decided_conjunction(op: str, operands: list[CppTerm]) -> CppTerm | None:
    """`and` with a condition that always or never holds."""
    if op != "and":
        return None
    for one, other in (operands, operands[::-1]):
        if one.text == "true":
            return other
        if one.text == "false":
            return one
    return None


_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _small_comparison(scope: CppScope, scalar: Apply) -> CppTerm | None:
    """Comparisons of index expressions known to fit 32 bits: half the vector work of 64."""
    if scalar.op not in _COMPARISONS:
        return None
    exprs = [found for found in map(_as_index, scalar.operands) if found is not None]
    if len(exprs) < 2:
        return None
    decided = decide_comparison(scalar.op, *exprs)
    if decided is not None:
        return CppTerm("true" if decided else "false", 0)
    if not all(map(_fits, exprs)):
        return None
    terms = [scope.index(expr) for expr in exprs]
    text = f"((int)({terms[0].text}) {_COMPARISONS[scalar.op]} (int)({terms[1].text}))"
    return scope.assign(text, torch.bool, max(term.level for term in terms))


def _as_index(scalar: Scalar) -> Expr | None:
    if isinstance(scalar, Literal) and scalar.dtype == torch.int64:
        return as_expr(int(scalar.value))
    return scalar.expr if isinstance(scalar, Index) else None


def _fits(expr: Expr) -> bool:
    low, high = bounds(expr)
    return low is not None and high is not None and low > -(2**31) and high < 2**31


def _cast(scope: CppScope, scalar: Cast, guard: BoundsCheck | None) -> CppTerm:
    operand, source = scope.emit(scalar.operand, guard), scalar.operand.dtype
    place = scalar.operand if isinstance(scalar.operand, Index) else None
    if place is not None and scalar.dtype.is_floating_point and _fits(place.expr):
        source = torch.int32  # AVX2 converts no vectors of 64 bits
        operand = scope.assign(f"(int){operand.text}", source, operand.level)
    text = cast_text(operand.text, source, scalar.dtype)
    if scalar.operand.dtype.is_floating_point and scalar.dtype in _FOLDED_WITH_FLOATS:
        # GCC takes `(float)(i64)x` for `trunc(x)`, which keeps -0.0 and what no integer holds.
        unknown = scope.assign(f"bz_zero<{TYPES[scalar.dtype].value}>()", scalar.dtype, 0)
        text = f"{text} ^ {unknown.text}"
    return scope.assign(text, scalar.dtype, operand.level)


_FOLDED_WITH_FLOATS = frozenset((torch.int32, torch.int64, torch.uint32, torch.uint64))


def _guarded(scope: CppScope, scalar: Guarded, guard: BoundsCheck | None) -> CppTerm:
    condition = scope.emit(scalar.condition, guard)
    if condition.text in ("true", "false"):
        return scope.emit(scalar.value if condition.text == "true" else scalar.other, guard)
    inside = _both(scope, guard, condition)
    negated = scope.assign(f"!{condition.text}", torch.bool, condition.level)
    value = scope.emit(scalar.value, inside)
    other = scope.emit(scalar.other, _both(scope, guard, negated))
    level = max(condition.level, value.level, other.level)
    template = _choice(scope, scalar.dtype, condition, level)
    text = template.format(condition.text, value.text, other.text)
    return scope.assign(text, scalar.dtype, level)


def _both(scope: CppScope, guard: BoundsCheck | None, condition: CppTerm) -> BoundsCheck:
    if guard is None:
        return BoundsCheck(condition.text, condition.level)
    level = max(guard.level, condition.level)
    both = scope.assign(f"(bool)({guard.text} & {condition.text})", torch.bool, level)
    return BoundsCheck(both.text, both.level)


def _in_range(scope: CppScope, scalar: InRange, guard: BoundsCheck | None) -> CppTerm:
    operand = scope.emit(scalar.operand, guard)
    size = scope.index(as_expr(scalar.size)).text
    level = operand.level if guard is None else max(operand.level, guard.level)
    inside = scope.assign(f"((u64){operand.text} < (u64)({size}))", torch.bool, level)
    wanted = f"!{inside.text}" if guard is None else f"({guard.text} & !{inside.text})"
    scope.faults = True
    line = f"bad |= (int){wanted};"
    if line not in scope.lines[level]:
        scope.lines[level].append(line)
    return scope.assign(f"{inside.text} ? {operand.text} : 0", torch.int64, level)


def _reduce(scope: CppScope, scalar: Reduce, guard: BoundsCheck | None) -> CppTerm:
    raise TypeError("a reduction reached the generator inside an expression")


_EMITTERS: dict[type, Callable[..., CppTerm]] = {
    Literal: _literal,
    Index: _index,
    Load: _load,
    Apply: _apply,
    Cast: _cast,
    Guarded: _guarded,
    InRange: _in_range,
    Reduce: _reduce,
}
