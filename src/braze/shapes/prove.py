"""What follows from ranges and inequalities: `is_nonnegative` says True, or None for "not known".

    s in [2, ...], t in [2, ...]      s*t - s >= 0      every coefficient of (2+a)*(2+b) - (2+a)
                                                        is not negative for a, b >= 0

Polynomials are shifted to the lower ends of their symbols; floor divisions by constants are
bounded by the division itself; minima and maxima are tried operand by operand. Sound, not
complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from braze.shapes.expr import (
    Atom,
    Expr,
    Extremum,
    FloorDiv,
    IntLike,
    Mod,
    Monomial,
    Ranges,
    Symbol,
    as_expr,
    bounds,
    constant_value,
    range_of,
)
from braze.shapes.substitution import substitute

_DEEPEST = 3


def is_nonnegative(value: IntLike, ranges: Ranges, facts: Iterable[Expr] = ()) -> bool:
    """Whether the expression is surely >= 0. ranges: what is known of symbols beyond their own;
    facts: expressions that are >= 0."""
    expr = as_expr(value)
    if _proven(expr, ranges, _DEEPEST):
        return True
    return any(_proven(expr - fact, ranges, 1) for fact in facts)


def is_plainly_nonnegative(expr: Expr, ranges: Ranges) -> bool:
    """Whether the ends of ranges say it, term by term: all that most questions need."""
    least = plain_least(expr, ranges)
    return least is not None and least >= 0


def plain_least(expr: Expr, ranges: Ranges) -> int | None:
    """A lower bound by the ends of ranges, term by term, where no symbol is negative."""
    total = 0
    for monomial, coefficient in expr.terms:
        term = coefficient
        for atom in monomial:
            if type(atom) is not Symbol:
                return None
            low, high = range_of(atom, ranges)
            end = low if coefficient > 0 else high
            if low is None or low < 0 or end is None:
                return None
            term *= end
        total += term
    return total


def shifted(expr: Expr, ranges: Ranges) -> Expr | None:
    """The expression in terms of how far each symbol is above its lower end (below its upper end
    where it has no lower one); None where an atom is no symbol or a symbol has no end."""
    moved: dict[Symbol, IntLike] = {}
    for monomial, _ in expr.terms:
        for atom in monomial:
            if type(atom) is not Symbol:
                return None
            if atom in moved:
                continue
            low, high = range_of(atom, ranges)
            above = Symbol(atom.name, 0, None if low is None or high is None else high - low)
            if low is not None:
                moved[atom] = above + low if low else above
            elif high is not None:
                moved[atom] = high - as_expr(above)
            else:
                return None
    return substitute(expr, moved)


# --- private -------------------------------------------------------------------------------------


def _proven(expr: Expr, ranges: Ranges, depth: int) -> bool:
    constant = constant_value(expr)
    if constant is not None:
        return constant >= 0
    plain = shifted(expr, ranges)
    if plain is not None:
        low, _ = bounds(plain)
        return low is not None and low >= 0
    if depth <= 0:
        return False
    for position, (monomial, coefficient) in enumerate(expr.terms):
        if len(monomial) == 1 and type(monomial[0]) is not Symbol:
            rest = Expr(expr.terms[:position] + expr.terms[position + 1 :])
            if _without(monomial[0], coefficient, rest, lambda e: _proven(e, ranges, depth - 1)):
                return True
    return _proven_apart(expr, ranges, depth)


def _proven_apart(expr: Expr, ranges: Ranges, depth: int) -> bool:
    """Atoms that are products' factors become symbols with the atoms' own ranges."""
    names: dict[Atom, Symbol] = {}
    terms: list[tuple[Monomial, int]] = []
    for monomial, coefficient in expr.terms:
        factors: list[Atom] = []
        for atom in monomial:
            if type(atom) is not Symbol:
                low, high = bounds(Expr((((atom,), 1),)))
                atom = names.setdefault(atom, Symbol(f"${len(names)}", low, high))
            factors.append(atom)
        terms.append((tuple(sorted(factors, key=str)), coefficient))
    return _proven(Expr(tuple(terms)), ranges, 0)


_Try: TypeAlias = Callable[[Expr], bool]


def _by_division(atom: FloorDiv, coefficient: int, rest: Expr, proven: _Try) -> bool:
    """d * (x // d) lies in [x - d + 1, x]."""
    divisor = constant_value(atom.divisor)
    if divisor is None:
        return False
    least = atom.dividend - (divisor - 1) if coefficient > 0 else atom.dividend
    return proven(rest * divisor + least * coefficient)


def _by_remainder(atom: Mod, coefficient: int, rest: Expr, proven: _Try) -> bool:
    """0 <= x % d <= d - 1."""
    return proven(rest if coefficient > 0 else rest + (atom.divisor - 1) * coefficient)


def _by_operands(atom: Extremum, coefficient: int, rest: Expr, proven: _Try) -> bool:
    """Each operand of a maximum is a lower bound of it; of a minimum, one of them is."""
    tries = (proven(rest + operand * coefficient) for operand in atom.operands)
    return any(tries) if atom.maximum is (coefficient > 0) else all(tries)


def _without(atom: Atom, coefficient: int, rest: Expr, proven: _Try) -> bool:
    """Whether the sum is proven with a bound of the atom in its place."""
    if isinstance(atom, FloorDiv):
        return _by_division(atom, coefficient, rest, proven)
    if isinstance(atom, Mod):
        return _by_remainder(atom, coefficient, rest, proven)
    return isinstance(atom, Extremum) and _by_operands(atom, coefficient, rest, proven)
