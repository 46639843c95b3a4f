"""What is known of a minimum, from and of its operands.

q is min(s, 3), 2 <= s      2 <= q <= 3
q == 3, or q >= 3           3 <= s, and q is written as 3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from braze.shapes.expr import Expr, Extremum, Ranges, Symbol, as_expr, constant_value, range_of
from braze.shapes.linear import linear_in

_ENDS = (2, 1, 0)  # zero and one are told apart from all other sizes


def lower_end(atom: object, low: int | None, is_known: Callable[[Expr], bool]) -> int | None:
    """The lower end of an atom's range, from what is known of its operands. low: the one that
    their own ranges give; is_known: whether an expression is never negative."""
    if type(atom) is not Extremum or atom.maximum:
        return low
    for end in _ENDS:
        if low is not None and low >= end:
            return low
        if all(is_known(operand - end) for operand in atom.operands):
            return end
    return low


def decided_by(
    expr: Expr, kind: str, meaning: Mapping[Symbol, Expr], ranges: Ranges
) -> tuple[Expr, Expr] | None:
    """Of `expr kind 0` that says that a minimum is its operand that is a number: (what is not
    negative then, what is zero then); else None. meaning: what symbols stand for."""
    linear = linear_in(expr)
    if linear is None:
        return None
    symbol, factor, rest = linear
    number, other = _number_and_other(meaning.get(symbol))
    if number is None or other is None:
        return None
    least = -(rest // factor) if kind == ">=" and factor > 0 else None
    if kind != ">=" and rest % factor == 0:
        least = -rest // factor
        if kind == "!=":
            least = least + 1 if range_of(symbol, ranges)[0] == least else None
    return (other - number, as_expr(symbol) - number) if least == number else None


def _number_and_other(expr: Expr | None) -> tuple[int | None, Expr | None]:
    """Of a minimum of a number and something else, both."""
    if expr is None or len(expr.terms) != 1:
        return None, None
    monomial, coefficient = expr.terms[0]
    atom = monomial[0] if len(monomial) == 1 == coefficient else None
    if type(atom) is not Extremum or atom.maximum or len(atom.operands) != 2:
        return None, None
    first, second = atom.operands
    if constant_value(first) is None:
        first, second = second, first
    return constant_value(first), second
