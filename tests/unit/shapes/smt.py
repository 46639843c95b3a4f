"""Index expressions as terms of an SMT solver: what they mean, apart from how Braze writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import z3

from braze.codegen.index_syntax import IndexSyntax
from braze.shapes.expr import Atom, Expr, Extremum, FloorDiv, IntLike, Symbol, as_expr

_MILLISECONDS = 20_000


def meaning(value: IntLike, names: Mapping[Symbol, z3.ArithRef] | None = None) -> z3.ArithRef:
    """The term of an expression. The solver's division rounds down for positive divisors."""
    total: Any = z3.IntVal(0)
    for monomial, coefficient in as_expr(value).terms:
        term: Any = z3.IntVal(coefficient)
        for atom in monomial:
            term = term * _atom(atom, names or {})
        total = total + term
    return total


def _atom(atom: Atom, names: Mapping[Symbol, z3.ArithRef]) -> Any:
    if isinstance(atom, Symbol):
        return names.get(atom, z3.Int(atom.name))
    if isinstance(atom, Extremum):
        return extremum([meaning(o, names) for o in atom.operands], atom.maximum)
    dividend, divisor = meaning(atom.dividend, names), meaning(atom.divisor, names)
    return dividend / divisor if isinstance(atom, FloorDiv) else dividend % divisor


def extremum(terms: list[Any], maximum: bool) -> Any:
    """The least or greatest of several terms."""
    found = terms[0]
    for term in terms[1:]:
        found = z3.If((term > found) if maximum else (term < found), term, found)
    return found


def in_ranges(symbols: Iterable[Symbol]) -> list[Any]:
    """What the ranges of symbols say."""
    found: list[Any] = []
    for symbol in symbols:
        if symbol.lower is not None:
            found.append(z3.Int(symbol.name) >= symbol.lower)
        if symbol.upper is not None:
            found.append(z3.Int(symbol.name) <= symbol.upper)
    return found


def counterexample(claim: Any, assumptions: Iterable[Any]) -> z3.ModelRef | None:
    """Numbers for which a claim does not hold; None where it is proved. Raises TimeoutError."""
    solver = z3.Solver()
    solver.set("timeout", _MILLISECONDS)
    solver.add(*assumptions, z3.Not(claim))
    answer = solver.check()
    if answer == z3.unknown:
        raise TimeoutError(f"{claim}: {solver.reason_unknown()}")
    return solver.model() if answer == z3.sat else None


class _Number:
    """A number of C's: divisions round towards zero."""

    def __init__(self, term: Any) -> None:
        self.term = term

    def __add__(self, other: _Number) -> _Number:
        return _Number(self.term + other.term)

    def __mul__(self, other: _Number) -> _Number:
        return _Number(self.term * other.term)

    def __truediv__(self, other: _Number) -> _Number:
        quotient = z3.If(self.term >= 0, self.term, -self.term) / other.term
        return _Number(z3.If(self.term >= 0, quotient, -quotient))

    __floordiv__ = __truediv__

    def __mod__(self, other: _Number) -> _Number:
        return _Number(self.term - other.term * (self / other).term)


_FUNCTIONS = {
    "floor_div": lambda a, b: _Number(a.term / b.term),
    "floor_mod": lambda a, b: _Number(a.term % b.term),
    "min": lambda a, b: _Number(extremum([a.term, b.term], False)),
    "minimum": lambda a, b: _Number(extremum([a.term, b.term], False)),
    "max": lambda a, b: _Number(extremum([a.term, b.term], True)),
    "maximum": lambda a, b: _Number(extremum([a.term, b.term], True)),
}


def meaning_of_text(expr: Expr, syntax: IndexSyntax, symbols: Iterable[Symbol]) -> Any:
    """The term of the text that a generator writes for an expression (divisors are positive)."""
    text = syntax.text(expr, {})
    text = re.sub(r"(?<![\w.])(-?\d+)L?\b", r"number(\1)", text)
    names: dict[str, Any] = {s.name: _Number(z3.Int(s.name)) for s in symbols}
    names |= {f"{p}{n}": f for n, f in _FUNCTIONS.items() for p in ("bz_", "tl_", "")}
    names["number"] = lambda n: _Number(z3.IntVal(n))
    return eval(text.replace("tl.", "tl_"), names).term
