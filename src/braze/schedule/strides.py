"""Computes the memory stride of each access per loop variable."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from braze.ir.loops import Buffer, Definition, Load, Reduce, Scalar
from braze.ir.scalars import walk
from braze.ir.schedule import offset
from braze.shapes.expr import Expr, Monomial, Symbol, as_expr, constant_value, symbols

Access = tuple[Buffer, Expr]
# Elements: neighbouring points this far apart share a sector of memory (the parts of complex ones).
_NEAR = 4


def load_accesses(scalar: Scalar) -> Iterator[Access]:
    """The loads in the expression."""
    for node in walk(scalar):
        if isinstance(node, Load):
            yield node.buffer, offset(node.buffer, node.coordinates)


def accesses(definition: Definition) -> list[Access]:
    """The definition's store, then its different loads."""
    found: dict[tuple[int, Expr], Access] = {}
    for buffer, expr in load_accesses(definition.body):
        found[id(buffer), expr] = (buffer, expr)
    stored = (definition.target, offset(definition.target, definition.store))
    return [stored, *found.values()]


def stride_along(expr: Expr, symbol: Symbol) -> Expr | None:
    """The factor of a symbol in which the expression is linear; None where it is not."""
    plain = 0
    others: list[tuple[Monomial, int]] = []
    for term in expr.terms:
        monomial = term[0]
        if len(monomial) == 1 and type(monomial[0]) is Symbol:
            if monomial[0] == symbol:
                plain += term[1]
        elif monomial:
            others.append(term)
    total = as_expr(plain)
    for monomial, coefficient in others:
        if symbol in monomial:
            rest = list(monomial)
            rest.remove(symbol)
            if any(symbol in symbols(as_expr_of(atom)) for atom in rest):
                return None
            total = total + Expr(((tuple(rest), coefficient),))
        elif any(symbol in symbols(as_expr_of(atom)) for atom in monomial):
            return None
    return total


def as_expr_of(atom: object) -> Expr:
    """An atom of an expression as an expression."""
    return Expr((((atom,), 1),))  # type: ignore[arg-type]


def best_vector_axis(
    candidates: Iterable[Symbol], places: Iterable[Access], scattered: Iterable[Expr] = ()
) -> Symbol | None:
    """The symbol along which most elements are read and written one after the other, the later
    one of equals. An access counts by the elements that it touches: a parameter that is read once
    a channel weighs nothing beside the image. scattered: accesses that touch an element at each
    point, at positions that data give beside the expression."""
    loops = list(candidates)
    known = [(expr, _touched(expr, loops)) for _, expr in places]
    known += [(expr, math.prod(map(_extent, loops))) for expr in scattered]
    best, best_score = None, -math.inf
    for symbol in loops:
        score = sum(weight * _score(stride_along(expr, symbol)) for expr, weight in known)
        if score >= best_score:
            best, best_score = symbol, score
    return best


def reduces_over_lanes(definition: Definition) -> bool:
    """Whether a reduction is best vectorised over results rather than over what it folds."""
    body = definition.body
    if not isinstance(body, Reduce) or not definition.axes:
        return False
    inner = [s for s, _ in body.axes]
    outer = [s for s, _ in definition.axes]
    loads = accesses(definition)[1:]
    return best_vector_axis([*outer, *inner], loads) in set(outer)


# --- private ---------------------------------------------------------------------------------


def _touched(expr: Expr, loops: Iterable[Symbol]) -> float:
    """How many points the access has over the loops; an unknown extent counts as 128."""
    found = symbols(expr)
    return math.prod(_extent(s) for s in loops if s in found)


def _extent(symbol: Symbol) -> float:
    return 128.0 if symbol.upper is None else symbol.upper + 1.0


def _score(stride: Expr | None) -> float:
    if stride is None:
        return -1.0
    value = constant_value(stride)
    if value == 1:
        return 2.0
    if value == 0:
        return 0.0
    return -1.0 if value is None or abs(value) > _NEAR else -0.5
