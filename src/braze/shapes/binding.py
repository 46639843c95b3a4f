"""Where a call finds the values of symbols: sizes and strides of inputs, solved for them.

shape (s0, 2*s1 + 1)   ->   n_s0 = x0.size(0);  n_s1 = (x0.size(1) - 1) // 2
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any, NoReturn, final

from braze.frozen import frozen
from braze.shapes.expr import (
    Expr,
    Extremum,
    FloorDiv,
    IntLike,
    Mod,
    Symbol,
    as_expr,
    as_expr_of,
    constant_value,
    symbols,
)


@final
@frozen
class Binding:
    """symbol == (the number at `place` - rest) // factor; rest is of symbols bound before.
    factor may be negative: `2048 - s0` is a size, too.
    place None: the symbol is `rest` itself."""

    symbol: Symbol
    place: Any
    factor: int
    rest: Expr

    def text(self, place: str, names: Mapping[Symbol, str]) -> str:
        """The Python expression of the symbol's value; `place` is the number's text."""
        if self.place is None:
            return python_text(self.rest, names)
        moved = f"({place} - ({python_text(self.rest, names)}))" if self.rest.terms else place
        return moved if self.factor == 1 else f"{moved} // {self.factor}"


class UnmetCheck(RuntimeError):
    """What a graph was compiled for does not hold of the numbers that it computed: running the
    call eagerly gives the result, or PyTorch's words."""


class ProgramRaises(UnmetCheck):
    """The program itself raises where the check does not hold: no fault of the graph's."""


def raise_unmet(message: str, raises: bool = False) -> NoReturn:
    """Stop a program."""
    raise (ProgramRaises if raises else UnmetCheck)(message)


@final
@frozen
class SizeCheck:
    """`expr kind 0` has to hold, once the numbers in it are known; message: what is said where it
    does not, with the user's line. kind: "==", "!=" or ">=".
    raises: there the program itself raises."""

    expr: Expr
    kind: str
    message: str
    raises: bool = False

    def text(self, names: Mapping[Symbol, str]) -> str:
        """The check as a Python expression."""
        return f"{python_text(self.expr, names)} {self.kind} 0"


@final
@frozen
class Sizes:
    """What a program is told of its symbols beside the sizes of its inputs.

    numbers: passed after the inputs, as the expressions that they are.
    derived: symbols that follow from others: `q0` is `(s0 + 1) // 2`.
    checks: of numbers that the program computes.
    """

    numbers: tuple[Expr, ...] = ()
    derived: tuple[tuple[Symbol, Expr], ...] = ()
    checks: tuple[SizeCheck, ...] = ()

    def symbols(self) -> set[Symbol]:
        """Every symbol in them."""
        found = {symbol for symbol, _ in self.derived}
        exprs = [*self.numbers, *(e for _, e in self.derived), *(c.expr for c in self.checks)]
        return found.union(*map(symbols, exprs))

    def following(self, bound: Set[Symbol]) -> list[Binding]:
        """Bindings of derived symbols that can be had where these are bound, and are not."""
        found: dict[Symbol, Binding] = {}
        for symbol, expr in self.derived:
            if symbol not in bound and symbols(expr) <= bound | found.keys():
                found[symbol] = Binding(symbol, None, 1, expr)
        return list(found.values())

    def decided(self, bound: Set[Symbol], done: Collection[SizeCheck]) -> list[SizeCheck]:
        """Checks that can be made where these are bound, without those that are done."""
        return [c for c in self.checks if c not in done and symbols(c.expr) <= bound]


NO_SIZES = Sizes()


def bind_symbols(
    numbers: Iterable[tuple[object, IntLike]], derived: Iterable[tuple[Symbol, Expr]] = ()
) -> list[Binding]:
    """Bindings of every symbol that can be had from numbers that calls bring along, in an order in
    which each needs only those before it. numbers: (place, the expression that it is)."""
    left = [(place, as_expr(value)) for place, value in numbers if not isinstance(value, int)]
    left = [(place, expr) for place, expr in left if constant_value(expr) is None]
    left.sort(key=lambda pair: len(pair[1].terms))
    found: dict[Symbol, Binding] = {}
    progress = True
    while left and progress:
        progress = False
        for pair in list(left):
            unbound = set(symbols(pair[1])) - found.keys()
            if len(unbound) > 1:
                continue
            left.remove(pair)
            solved = _solved(*pair, unbound.pop()) if unbound else None
            if solved is not None:
                found[solved.symbol] = solved
                progress = True
    for symbol, expr in derived:
        if symbols(expr) <= found.keys():  # others wait for a number that the program computes
            found.setdefault(symbol, Binding(symbol, None, 1, expr))
    return list(found.values())


def python_text(expr: Expr, names: Mapping[Symbol, str]) -> str:
    """The expression as Python text, with names for its symbols."""
    parts = []
    for monomial, coefficient in expr.terms:
        factors = [str(coefficient)] if coefficient != 1 or not monomial else []
        for atom in monomial:
            if isinstance(atom, Symbol):
                factors.append(names[atom])
            elif isinstance(atom, Extremum):
                inside = ", ".join(python_text(operand, names) for operand in atom.operands)
                factors.append(f"{'max' if atom.maximum else 'min'}({inside})")
            else:
                sign = "%" if isinstance(atom, Mod) else "//"
                left, right = _operand(atom.dividend, names), _operand(atom.divisor, names)
                text = f"{left} {sign} {right}"
                factors.append(text if len(monomial) == 1 == coefficient else f"({text})")
        parts.append(" * ".join(factors))
    return " + ".join(parts) or "0"


def with_remainders(expr: Expr) -> Expr:
    """The expression with `x % d` in the place of `x - d * (x // d)`, as people write it."""
    for monomial, _ in expr.terms:
        for atom in monomial:
            made = _with_remainder(expr, atom) if type(atom) is FloorDiv else None
            if made is not None:
                return with_remainders(made)
    return expr


def _with_remainder(expr: Expr, quotient: FloorDiv) -> Expr | None:
    whole = quotient.divisor * as_expr_of(quotient)
    factors, scale = whole.terms[0]
    found = next((c for monomial, c in expr.terms if monomial == factors), 0)
    times = -found // scale
    if not times:
        return None
    rest = expr - (quotient.dividend - whole) * times
    if len(rest.terms) >= len(expr.terms) or any(quotient in m for m, _ in rest.terms):
        return None
    remainder = Mod(quotient.dividend, quotient.divisor)
    return Expr((*rest.terms, ((remainder,), times)))


def _operand(expr: Expr, names: Mapping[Symbol, str]) -> str:
    """An operand of a division: in brackets, unless it is a number or a name."""
    text = python_text(expr, names)
    number = constant_value(expr)
    is_name = len(expr.terms) == 1 == expr.terms[0][1] and [*map(type, expr.terms[0][0])] == [
        Symbol
    ]
    return text if is_name or (number is not None and number >= 0) else f"({text})"


def _solved(place: object, expr: Expr, symbol: Symbol) -> Binding | None:
    factor, rest = 0, []
    for monomial, coefficient in expr.terms:
        if monomial == (symbol,):
            factor = coefficient
        else:
            rest.append((monomial, coefficient))
    others = Expr(tuple(rest))
    is_solved = factor != 0 and symbol not in symbols(others)
    return Binding(symbol, place, factor, others) if is_solved else None
