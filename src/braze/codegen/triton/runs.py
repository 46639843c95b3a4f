"""Indices that run through several loops in one go, as one index.

    i0 * 4096 + r0, r0 < 4096, over x = (i0, r0)                  ->    x
    i1 * 128 + i2 * 2 + r0, r0 < 2, i2 < 64, over x = (i0, ..)    ->    x % (128 * size of i1)

Triton then sees that neighbours are read together, up to the length of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from braze.ir.kernels.schedule import Loop
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, symbols

# The index of a run of loops: how many points are inside of it, and how many the run has itself
# (None: all that are left) -> the symbol that stands for it.
NameRun = Callable[[int, int | None], Symbol]


def regrouped(expr: Expr, loops: Sequence[Loop], name: NameRun) -> Expr:
    """The expression with one symbol for each run of loops that it reads in their order."""
    inside = 1
    last = len(loops) - 1
    while last > 0:
        first, width = _run(expr, loops, last)
        if width is None:
            return expr
        if first < last:
            step = _factor(expr, loops[last][0])
            for symbol, _ in loops[first : last + 1]:
                expr = expr - as_expr(symbol) * _factor(expr, symbol)
            expr = expr + as_expr(name(inside, width if first else None)) * step
        inside *= width
        last = first - 1
    return expr


# --- private ---------------------------------------------------------------------------------


def _run(expr: Expr, loops: Sequence[Loop], last: int) -> tuple[int, int | None]:
    """The first loop of the run that ends with `last`, and how many points it has; None where a
    size is a symbol (of the outermost loop it does not count)."""
    first, width = last, constant_value(loops[last][1])
    step = _factor(expr, loops[last][0])
    while width is not None and first > 0 and step:
        if _factor(expr, loops[first - 1][0]) != step * width:
            break
        first -= 1
        size = constant_value(loops[first][1])
        width = 1 if not first else (None if size is None else width * size)
    return first, width


def _factor(expr: Expr, symbol: Symbol) -> int:
    """What the symbol is multiplied by; 0 where it is part of anything else."""
    ((alone, _),) = as_expr(symbol).terms
    found = [term for term in expr.terms if symbol in symbols(Expr((term,)))]
    return found[0][1] if len(found) == 1 and found[0][0] == alone else 0
