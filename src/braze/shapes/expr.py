"""A small algebra of integer expressions: sizes, strides and loop indices.

An expression is a polynomial with integer coefficients over atoms: symbols and the floor
divisions, remainders, minima and maxima that could not be resolved. Construction normalises, so
equal polynomials are equal objects by `==` and `hash`. Facts come from the symbols' own ranges.

    >>> i, j = Symbol("i", 0, 3), Symbol("j", 0, 7)
    >>> str(floor_div(as_expr(i) * 8 + j, 8)), str(modulo(as_expr(i) * 8 + j, 8))
    ('i', 'j')

Not handled here: solving for a symbol, facts between symbols (those come with guards).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias, final

from braze.frozen import frozen
from braze.shapes.intervals import Range, divided, multiplied, scaled


@final
@frozen
class Symbol:
    """An unknown integer in [lower, upper]; None means unbounded on that side.

    hint: a value that it had, for estimates; symbols that differ in it alone are equal.
    """

    name: str
    lower: int | None = None
    upper: int | None = None
    hint: int | None = None

    # Most of the time of scheduling goes into telling symbols apart: by name first.
    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is Symbol
            and self.name == other.name
            and self.lower == other.lower
            and self.upper == other.upper
        )

    def __str__(self) -> str:
        return self.name

    def __add__(self, other: IntLike) -> Expr:
        return as_expr(self) + other

    def __sub__(self, other: IntLike) -> Expr:
        return as_expr(self) - other

    def __mul__(self, other: IntLike) -> Expr:
        return as_expr(self) * other


@final
@frozen
class FloorDiv:
    """floor(dividend / divisor), divisor > 0."""

    dividend: Expr
    divisor: Expr

    def __hash__(self) -> int:
        return hash((self.dividend, self.divisor))

    def __str__(self) -> str:
        return f"({self.dividend}) // ({self.divisor})"


@final
@frozen
class Mod:
    """dividend - divisor * floor(dividend / divisor), divisor > 0."""

    dividend: Expr
    divisor: Expr

    def __hash__(self) -> int:
        return hash((self.dividend, self.divisor))

    def __str__(self) -> str:
        return f"({self.dividend}) % ({self.divisor})"


@final
@frozen
class Extremum:
    """The least (`maximum` False) or greatest of two or more expressions."""

    operands: tuple[Expr, ...]
    maximum: bool

    def __str__(self) -> str:
        name = "max" if self.maximum else "min"
        return f"{name}({', '.join(map(str, self.operands))})"


Atom: TypeAlias = Symbol | FloorDiv | Mod | Extremum
Monomial: TypeAlias = tuple[Atom, ...]
Ranges: TypeAlias = Mapping[Symbol, Range]


@final
class Expr:
    """terms: (monomial, coefficient) sorted by print, no coefficient zero; () is the constant.
    Never changed. No dataclass: a symbolic trace makes, compares and hashes tens of thousands."""

    __slots__ = ("_hash", "_symbols", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = 0
        self._symbols: frozenset[Symbol] | None = None

    def __hash__(self) -> int:
        if not self._hash:
            self._hash = hash(self.terms)
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is Expr and hash(self) == hash(other) and self.terms == other.terms
        )

    def __repr__(self) -> str:
        return f"Expr({self})"

    def __add__(self, other: IntLike) -> Expr:
        added = as_expr(other)
        if not added.terms:
            return self
        return collect_terms(self.terms + added.terms) if self.terms else added

    def __radd__(self, other: IntLike) -> Expr:
        return self + other

    def __neg__(self) -> Expr:
        return Expr(tuple((monomial, -coefficient) for monomial, coefficient in self.terms))

    def __sub__(self, other: IntLike) -> Expr:
        taken = as_expr(other)
        if taken is self:
            return ZERO
        if not taken.terms:
            return self
        return collect_terms(self.terms + tuple([(m, -c) for m, c in taken.terms]))

    def __rsub__(self, other: IntLike) -> Expr:
        return as_expr(other) + -self

    def __mul__(self, other: IntLike) -> Expr:
        if type(other) is int and other:
            return self if other == 1 else Expr(tuple([(m, c * other) for m, c in self.terms]))
        factor = as_expr(other)
        return collect_terms(
            [(_product(a, b), p * q) for a, p in self.terms for b, q in factor.terms]
        )

    def __rmul__(self, other: IntLike) -> Expr:
        return self * other

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        return " + ".join(_print_term(monomial, c) for monomial, c in self.terms)

    # Where a number is needed there is none: the caller says what to do without.

    def __index__(self) -> int:
        constant = constant_value(self)
        if constant is None:
            raise NotANumber(str(self))
        return constant

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __lt__(self, other: IntLike) -> bool:
        low, high = bounds(self - other)
        if high is not None and high < 0:
            return True
        if low is not None and low >= 0:
            return False
        raise NotANumber(f"{self} < {other}")

    def __ge__(self, other: IntLike) -> bool:
        return not self < other

    def __gt__(self, other: IntLike) -> bool:
        return as_expr(other) < self

    def __le__(self, other: IntLike) -> bool:
        return not as_expr(other) < self


class NotANumber(TypeError):
    """A number was needed of an expression that has symbols, or an order that is not known."""


IntLike: TypeAlias = int | Symbol | Expr

ZERO = Expr(())
# A large program's strides and sizes are tens of thousands of few numbers.
_SMALL = (ZERO, *[Expr((((), number),)) for number in range(1, 257)])


def as_expr(value: IntLike) -> Expr:
    """The expression for an int, a symbol or an expression."""
    if type(value) is Expr:
        return value
    if type(value) is Symbol:
        return Expr((((value,), 1),))
    number = int(value)
    return _SMALL[number] if 0 <= number < len(_SMALL) else Expr((((), number),))


def as_expr_of(atom: Atom) -> Expr:
    """An atom by itself as an expression."""
    return Expr((((atom,), 1),))


def constant_value(value: IntLike) -> int | None:
    """The int that the expression always is, or None."""
    if type(value) is Expr:
        terms = value.terms
        if not terms:
            return 0
        return terms[0][1] if len(terms) == 1 and not terms[0][0] else None
    if type(value) is Symbol:
        low, high = value.lower, value.upper
        return low if low is not None and low == high else None
    return value


def dot(left: Iterable[IntLike], right: Iterable[IntLike]) -> Expr:
    """The sum of the products, position by position."""
    total: list[tuple[Monomial, int]] = []
    for one, other in zip(left, right):
        terms = as_expr(one).terms
        if type(other) is int:
            total += terms if other == 1 else [(m, c * other) for m, c in terms]
            continue
        for monomial, coefficient in as_expr(other).terms:
            total += [(_product(m, monomial), c * coefficient) for m, c in terms]
    return collect_terms(total)


def simplified(value: IntLike) -> int | Expr:
    """An int where the expression is constant, else the expression: the form kept in types."""
    constant = constant_value(value)
    return constant if constant is not None else as_expr(value)


def floor_div(dividend: IntLike, divisor: IntLike) -> Expr:
    """floor(dividend / divisor); a divisor that is a constant must be positive."""
    dividend, divisor = as_expr(dividend), as_expr(divisor)
    constant = constant_value(divisor)
    if constant is None:
        return _floor_div_symbolic(dividend, divisor)
    if constant <= 0:
        raise ValueError(f"floor_div: divisor must be positive, got {constant}")
    if constant == 1:
        return dividend
    for quotient, rest in _splits(dividend, constant):
        low, high = bounds(rest)
        if low is not None and high is not None and low // constant == high // constant:
            return quotient + low // constant
    quotient, rest = _split_multiples(dividend, constant)
    factor, coarse, _ = _split_fine(rest, constant)
    if factor > 1:
        return quotient + floor_div(coarse, constant // factor)
    return quotient + _floor_div_atom(rest, constant)


def modulo(dividend: IntLike, divisor: IntLike) -> Expr:
    """dividend - divisor * floor(dividend / divisor); the sign is the divisor's."""
    dividend, divisor = as_expr(dividend), as_expr(divisor)
    constant = constant_value(divisor)
    if constant is None:
        quotient = _floor_div_symbolic(dividend, divisor)
        if all(not isinstance(atom, FloorDiv) for m, _ in quotient.terms for atom in m):
            return dividend - divisor * quotient
        return Expr((((Mod(dividend, divisor),), 1),))
    if constant <= 0:
        raise ValueError(f"modulo: divisor must be positive, got {constant}")
    if constant == 1:
        return ZERO
    for _, rest in _splits(dividend, constant):
        low, high = bounds(rest)
        if low is not None and high is not None and low // constant == high // constant:
            return rest - constant * (low // constant)
    _, rest = _split_multiples(dividend, constant)
    factor, coarse, fine = _split_fine(rest, constant)
    if factor > 1:
        return modulo(coarse, constant // factor) * factor + fine
    return Expr((((Mod(rest, as_expr(constant)),), 1),))


def minimum(*operands: IntLike) -> Expr:
    """The least of the operands, resolved where ranges decide."""
    return _extremum(operands, maximum=False)


def maximum(*operands: IntLike) -> Expr:
    """The greatest of the operands, resolved where ranges decide."""
    return _extremum(operands, maximum=True)


def bounds(value: IntLike, ranges: Ranges | None = None) -> Range:
    """(least, greatest) value by interval arithmetic; None is unbounded. Sound, not tight.
    ranges: what is known of symbols beyond their own."""
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in as_expr(value).terms:
        interval = _monomial_bounds(monomial, ranges) if monomial else (1, 1)
        term_low, term_high = scaled(interval, coefficient)
        low = None if low is None or term_low is None else low + term_low
        high = None if high is None or term_high is None else high + term_high
    return low, high


def range_of(symbol: Symbol, ranges: Ranges) -> Range:
    """The narrowest known range of a symbol."""
    known = ranges.get(symbol)
    if known is None:
        return symbol.lower, symbol.upper
    low, high = known
    if low is None or (symbol.lower is not None and symbol.lower > low):
        low = symbol.lower
    if high is None or (symbol.upper is not None and symbol.upper < high):
        high = symbol.upper
    return low, high


def symbols(value: IntLike) -> frozenset[Symbol]:
    """Every symbol in the expression."""
    expr = as_expr(value)
    found = expr._symbols
    if found is None:
        named: set[Symbol] = set()
        for monomial, _ in expr.terms:
            for atom in monomial:
                if type(atom) is Symbol:
                    named.add(atom)
                else:
                    named |= _atom_symbols(atom)
        found = expr._symbols = _shared(frozenset([(s, s.hint) for s in named]))
    return found


@lru_cache(maxsize=1024)  # a set is three times as large as the expression that it is found for
def _shared(hinted: frozenset[tuple[Symbol, int | None]]) -> frozenset[Symbol]:
    return frozenset([symbol for symbol, _ in hinted])


# --- private ---------------------------------------------------------------------------------


def collect_terms(terms: Sequence[tuple[Monomial, int]]) -> Expr:
    """The sum of the terms, normalised."""
    if len(terms) < 2:
        return Expr(tuple(terms)) if terms and terms[0][1] else ZERO
    sums: dict[Monomial, int] = {}
    remainders = False
    for monomial, coefficient in terms:
        sums[monomial] = sums[monomial] + coefficient if monomial in sums else coefficient
        for atom in monomial:
            if type(atom) is Mod:
                remainders = True
    if remainders:
        _merge_division_pairs(sums)
    kept = [term for term in sums.items() if term[1]]
    if len(kept) == 2 and not (kept[0][0] and kept[1][0]):
        if not kept[0][0]:
            kept.reverse()  # the constant comes last
    elif len(kept) > 1:
        kept.sort(key=_place_in_print)
    return Expr(tuple(kept))


def _place_in_print(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    monomial = term[0]
    return -len(monomial), [a.name if type(a) is Symbol else str(a) for a in monomial]


def _product(left: Monomial, right: Monomial) -> Monomial:
    if not left:
        return right
    return tuple(sorted(left + right, key=str)) if right else left


def _merge_division_pairs(sums: dict[Monomial, int]) -> None:
    """c * (x % d) + c * d * (x // d)  ->  c * x, where d is one product."""
    for monomial in list(sums):
        remainder = next((atom for atom in monomial if type(atom) is Mod), None)
        coefficient = sums.get(monomial, 0)
        if remainder is None or not coefficient or len(remainder.divisor.terms) != 1:
            continue
        ((factors, scale),) = remainder.divisor.terms
        if coefficient * scale not in sums.values():
            continue
        if factors:
            quotient = _floor_div_symbolic(remainder.dividend, remainder.divisor)
        else:
            quotient = _floor_div_atom(remainder.dividend, scale)
        if len(quotient.terms) != 1 or quotient.terms[0][1] != 1:
            continue
        rest = _remove_factors(monomial, (remainder,))
        assert rest is not None
        partner = _product(quotient.terms[0][0], _product(factors, rest))
        if sums.get(partner, 0) == coefficient * scale:
            del sums[monomial], sums[partner]
            for other, c in remainder.dividend.terms:
                merged = _product(other, rest)
                sums[merged] = sums.get(merged, 0) + c * coefficient


def _splits(value: Expr, divisor: int) -> Iterable[tuple[Expr, Expr]]:
    """Ways to write value as divisor * quotient + rest: the rest's coefficients not negative, or
    nearest zero (which decides divisions of reversed positions, `7 - i`)."""
    yield _split_multiples(value, divisor)
    if any(coefficient < 0 for _, coefficient in value.terms):
        yield _split_multiples(value, divisor, shift=divisor // 2)


def _split_fine(value: Expr, divisor: int) -> tuple[int, Expr, Expr]:
    """(factor, coarse, fine) with value == factor * coarse + fine, 0 <= fine < factor, and factor
    a divisor of `divisor`; (1, value, 0) where there is none."""
    factors = {math.gcd(divisor, coefficient) for monomial, coefficient in value.terms if monomial}
    for factor in sorted(factors - {1}, reverse=True):
        coarse: list[tuple[Monomial, int]] = []
        fine: list[tuple[Monomial, int]] = []
        for monomial, coefficient in value.terms:
            whole, part = divmod(coefficient, factor)
            if monomial and part:
                fine.append((monomial, coefficient))
            else:
                coarse.append((monomial, whole))
                fine.append((monomial, part))
        rest = collect_terms(fine)
        low, high = bounds(rest)
        if rest.terms and low is not None and low >= 0 and high is not None and high < factor:
            return factor, collect_terms(coarse), rest
    return 1, value, ZERO


def _split_multiples(value: Expr, divisor: int, shift: int = 0) -> tuple[Expr, Expr]:
    """value == divisor * quotient + rest, the rest's coefficients in [-shift, divisor - shift)."""
    quotient: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for monomial, coefficient in value.terms:
        whole = (coefficient + shift) // divisor if monomial else coefficient // divisor
        part = coefficient - whole * divisor
        if whole:
            quotient.append((monomial, whole))
        if part:
            rest.append((monomial, part))
    return Expr(tuple(quotient)), Expr(tuple(rest))


def _floor_div_atom(dividend: Expr, divisor: int) -> Expr:
    """An unresolved division, with common factors removed and nested divisions merged."""
    common = math.gcd(divisor, *(c for monomial, c in dividend.terms if monomial))
    if common > 1:
        reduced = [
            (monomial, c // common if monomial else math.floor(c / common))
            for monomial, c in dividend.terms
        ]
        return floor_div(collect_terms(reduced), divisor // common)
    if len(dividend.terms) == 1 and dividend.terms[0][1] == 1:
        monomial = dividend.terms[0][0]
        if len(monomial) == 1 and isinstance(monomial[0], FloorDiv):
            inner = monomial[0]
            inner_divisor = constant_value(inner.divisor)
            if inner_divisor is not None:
                return floor_div(inner.dividend, inner_divisor * divisor)
    return Expr((((FloorDiv(dividend, as_expr(divisor)),), 1),))


def _floor_div_symbolic(dividend: Expr, divisor: Expr) -> Expr:
    """Divide by a symbolic divisor: exact multiples leave, the rest stays unless in range."""
    if len(divisor.terms) == 1:
        factor, scale = divisor.terms[0]
        quotient: list[tuple[Monomial, int]] = []
        rest: list[tuple[Monomial, int]] = []
        for monomial, coefficient in dividend.terms:
            remaining = _remove_factors(monomial, factor)
            if remaining is not None and coefficient % scale == 0:
                quotient.append((remaining, coefficient // scale))
            else:
                rest.append((monomial, coefficient))
        left = Expr(tuple(rest))
        low, _ = bounds(left)
        _, gap = bounds(left - divisor)
        if low is not None and low >= 0 and gap is not None and gap < 0:
            return collect_terms(quotient)
        return collect_terms([*quotient, ((FloorDiv(left, divisor),), 1)])
    if dividend == divisor:
        return as_expr(1)
    return Expr((((FloorDiv(dividend, divisor),), 1),))


def _remove_factors(monomial: Monomial, factors: Monomial) -> Monomial | None:
    remaining = list(monomial)
    for factor in factors:
        if factor not in remaining:
            return None
        remaining.remove(factor)
    return tuple(remaining)


def _extremum(operands: Iterable[IntLike], maximum: bool) -> Expr:
    sign = 1 if maximum else -1
    kept: list[Expr] = []
    for operand in dict.fromkeys(map(as_expr, operands)):
        if any(_is_nonnegative((other - operand) * sign) for other in kept):
            continue
        kept = [other for other in kept if not _is_nonnegative((operand - other) * sign)]
        kept.append(operand)
    if len(kept) == 1:
        return kept[0]
    return Expr((((Extremum(tuple(sorted(kept, key=str)), maximum),), 1),))


def _is_nonnegative(value: Expr) -> bool:
    low, _ = bounds(value)
    return low is not None and low >= 0


def _atom_bounds(atom: Atom, ranges: Ranges | None) -> Range:
    if isinstance(atom, Symbol):
        return (atom.lower, atom.upper) if ranges is None else range_of(atom, ranges)
    if isinstance(atom, Mod):
        _, divisor_high = bounds(atom.divisor, ranges)
        low, high = bounds(atom.dividend, ranges)
        top = None if divisor_high is None else divisor_high - 1
        if low is not None and low >= 0 and high is not None:
            top = high if top is None else min(top, high)
        return 0, top
    if isinstance(atom, FloorDiv):
        return divided(bounds(atom.dividend, ranges), bounds(atom.divisor, ranges))
    lows, highs = zip(*[bounds(operand, ranges) for operand in atom.operands], strict=True)
    if atom.maximum:
        known = [low for low in lows if low is not None]
        return max(known, default=None), None if None in highs else max(highs)
    known = [high for high in highs if high is not None]
    return None if None in lows else min(lows), min(known, default=None)


def _monomial_bounds(monomial: Monomial, ranges: Ranges | None) -> Range:
    if len(monomial) == 1:
        return _atom_bounds(monomial[0], ranges)
    low: int | None = 1
    high: int | None = 1
    for atom in monomial:
        low, high = multiplied((low, high), _atom_bounds(atom, ranges))
    return low, high


def _atom_symbols(atom: Atom) -> frozenset[Symbol]:
    if isinstance(atom, Symbol):
        return frozenset((atom,))
    if isinstance(atom, Extremum):
        return frozenset().union(*map(symbols, atom.operands))
    return symbols(atom.dividend) | symbols(atom.divisor)


def _print_term(monomial: Monomial, coefficient: int) -> str:
    if not monomial:
        return str(coefficient)
    factors = "*".join(
        str(atom) if isinstance(atom, (Symbol, Extremum)) else f"({atom})" for atom in monomial
    )
    return factors if coefficient == 1 else f"{coefficient}*{factors}"
