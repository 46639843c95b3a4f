"""Linear equations of sizes: what one symbol is, where the others are given."""

from __future__ import annotations

import math
from collections.abc import Set

from braze.shapes.expr import Expr, Symbol, as_expr, symbols


def linear_in(expr: Expr) -> tuple[Symbol, int, int] | None:
    """(symbol, factor, rest) of `factor * symbol + rest`."""
    found: tuple[Symbol, int] | None = None
    rest = 0
    for monomial, coefficient in expr.terms:
        if not monomial:
            rest = coefficient
        elif found is None and len(monomial) == 1 and type(monomial[0]) is Symbol:
            found = monomial[0], coefficient
        else:
            return None
    return None if found is None else (*found, rest)


def solved_for(expr: Expr, among: Set[Symbol] | None = None) -> tuple[Symbol, Expr] | None:
    """(symbol, what it equals) of `expr == 0`: the newest symbol with a factor that divides."""
    uses: dict[Symbol, int] = {}
    for monomial, _ in expr.terms:
        for symbol in set().union(*(symbols(Expr((((a,), 1),))) for a in monomial)):
            uses[symbol] = uses.get(symbol, 0) + 1
    candidates = []
    for monomial, coefficient in expr.terms:
        if len(monomial) != 1 or type(monomial[0]) is not Symbol or uses[monomial[0]] != 1:
            continue
        allowed = among is None or monomial[0] in among
        if allowed and all(c % coefficient == 0 for _, c in expr.terms):
            candidates.append((monomial[0], coefficient))
    if not candidates:
        return None
    symbol, factor = max(candidates, key=lambda c: (len(c[0].name), c[0].name))
    rest = expr - as_expr(symbol) * factor
    return symbol, Expr(tuple((m, -c // factor) for m, c in rest.terms))


def can_be_zero(expr: Expr) -> bool:
    """Whether the coefficients allow it: 2*s + 1 never is."""
    common = math.gcd(*(c for monomial, c in expr.terms if monomial))
    constant = next((c for monomial, c in expr.terms if not monomial), 0)
    return not common or constant % common == 0
