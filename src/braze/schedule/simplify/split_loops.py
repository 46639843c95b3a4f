"""Splits loops where index expressions divide them.

    for r in 768:  y[r] = x[r // 64, r % 64]
becomes
    for p in 12:  for q in 64:  y[64*p + q] = x[p, q]

so that every loop walks memory evenly. Only exact cuts by constants; what could as well stay one
loop is merged again afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from braze.ir.kernels.schedule import Loop
from braze.schedule.analysis.strides import stride_along
from braze.schedule.simplify.normalize import Names
from braze.shapes.expr import Expr, Extremum, FloorDiv, Mod, Symbol, as_expr, bounds, constant_value
from braze.shapes.substitution import substitute

_MOST_CUTS = 8


def divide(
    loops: Sequence[Loop], places: Iterable[Expr], names: Names
) -> tuple[tuple[Loop, ...], dict[Symbol, Expr]]:
    """The loops after all cuts, and what each loop that was cut is now."""
    current = list(loops)
    exprs = set(places)
    replaced: dict[Symbol, Expr] = {}
    for _ in range(_MOST_CUTS):
        cut = _find_cut(current, exprs)
        if cut is None:
            break
        position, divisor = cut
        symbol, size = current[position]
        count = (constant_value(size) or 0) // divisor
        outer, inner = names.symbol("d", count), names.symbol("d", divisor)
        step = {symbol: as_expr(outer) * divisor + inner}
        current[position : position + 1] = [(outer, count), (inner, divisor)]
        exprs = {substitute(expr, step) for expr in exprs}
        replaced = {old: substitute(new, step) for old, new in replaced.items()} | step
    return tuple(current), {s: e for s, e in replaced.items() if s in dict(loops)}


# --- private ---------------------------------------------------------------------------------


def _find_cut(loops: Sequence[Loop], exprs: Iterable[Expr]) -> tuple[int, int] | None:
    """The loop to cut and by what, smallest divisor first."""
    found: list[tuple[int, int]] = []
    for expr in exprs:
        for dividend, divisor in _divisions(expr):
            for position, (symbol, size) in enumerate(loops):
                part = _part(dividend, divisor, symbol)
                length = constant_value(size)
                if part is None or length is None or not 1 < part < length:
                    continue
                if length % part == 0:
                    found.append((part, position))
    if not found:
        return None
    part, position = min(found)
    return position, part


def _divisions(expr: Expr) -> Iterator[tuple[Expr, int]]:
    for monomial, _ in expr.terms:
        for atom in monomial:
            if isinstance(atom, (FloorDiv, Mod)):
                divisor = constant_value(atom.divisor)
                if divisor is not None:
                    yield atom.dividend, divisor
                yield from _divisions(atom.dividend)
            elif isinstance(atom, Extremum):
                for operand in atom.operands:
                    yield from _divisions(operand)


def _part(dividend: Expr, divisor: int, symbol: Symbol) -> int | None:
    """p such that floor(dividend / divisor) changes only with symbol // p: the dividend is
    step * symbol + rest, the rest below one step (or whole multiples of the divisor)."""
    stride = stride_along(dividend, symbol)
    step = None if stride is None else constant_value(stride)
    if not step or step < 0 or divisor % step:
        return None
    rest = dividend - as_expr(symbol) * step
    low_terms = Expr(tuple(t for t in rest.terms if t[1] % divisor))
    low, high = bounds(low_terms)
    if low is None or high is None or low < 0 or high >= step:
        return None
    return divisor // step
