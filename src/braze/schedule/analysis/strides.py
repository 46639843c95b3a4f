"""Computes the memory stride of each access per loop variable."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, Definition, Index, Load, Reduce, Scalar, Scatter
from braze.ir.kernels.scalars import walk
from braze.ir.kernels.schedule import offset
from braze.shapes.expr import Expr, Monomial, Symbol, as_expr, as_expr_of, constant_value, symbols

Access = tuple[Buffer, Expr]


@frozen
class Walk:
    """How a definition's points touch a buffer.

    place: elements from the buffer's start, coordinates that are looked up left out.
    looked_up: the symbols by which those coordinates are looked up; neighbouring points along one
        of them lie anywhere in the buffer.
    """

    place: Expr
    looked_up: frozenset[Symbol]


def load_accesses(scalar: Scalar) -> Iterator[Access]:
    """The loads in the expression."""
    for node in walk(scalar):
        if isinstance(node, Load):
            yield node.buffer, offset(node.buffer, node.coordinates)


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


def load_walks(scalar: Scalar) -> Iterator[Walk]:
    """How the loads in the expression walk their buffers."""
    for node in walk(scalar):
        if isinstance(node, Load):
            yield _load_walk(node)


def store_walk(target: Buffer, store: Sequence[Expr], body: Scalar) -> Walk:
    """How a store walks its target; a scatter's looks up where it writes."""
    positions = body.positions if isinstance(body, Scatter) else ()
    return Walk(offset(target, store), _symbols_of(p for p in positions if p is not None))


def best_vector_axis(candidates: Iterable[Symbol], walks: Iterable[Walk]) -> Symbol | None:
    """The symbol along which most elements are read and written one after the other, the later
    one of equals. An access counts by the elements that it touches: a parameter that is read once
    a channel weighs nothing beside the image, and an index that is looked up once a row nothing
    beside the row that is gathered or scattered by it."""
    loops = list(candidates)
    known = [(found, n * _touched(found, loops)) for found, n in Counter(walks).items()]
    best, best_score = None, -math.inf
    for symbol in loops:
        score = sum(weight * _score(found, symbol) for found, weight in known)
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
    loads = [node for node in walk(body.body) if isinstance(node, Load)]
    different = dict.fromkeys((id(load.buffer), _load_walk(load)) for load in loads)
    return best_vector_axis([*outer, *inner], [found for _, found in different]) in set(outer)


# --- private ---------------------------------------------------------------------------------

_NOTHING: frozenset[Symbol] = frozenset()  # one for all: there are as many walks as loads


def _load_walk(load: Load) -> Walk:
    looked_up = _symbols_of(c for c in load.coordinates if not isinstance(c, Expr))
    return Walk(offset(load.buffer, load.coordinates), looked_up)


def _symbols_of(scalars: Iterable[Scalar]) -> frozenset[Symbol]:
    """The symbols that the values depend on."""
    found: set[Symbol] = set()
    for scalar in scalars:
        for node in walk(scalar):
            if isinstance(node, Index):
                found |= symbols(node.expr)
            elif isinstance(node, Load):
                found |= symbols(offset(node.buffer, node.coordinates))
    return frozenset(found) if found else _NOTHING


def _touched(access: Walk, loops: Iterable[Symbol]) -> float:
    """How many points the access has over the loops; an unknown extent counts as 128."""
    found = symbols(access.place) | access.looked_up
    extents = (s.upper + 1 if s.upper is not None else 128 for s in loops if s in found)
    return float(math.prod(extents))


def _score(access: Walk, symbol: Symbol) -> float:
    """2 for neighbours in memory, 0 for an element that stays, -1 for elements that share no line
    of memory, and in between by how much of a line is used: both parts of complex numbers are read
    two elements apart, and a line that is read for the one part is there for the other."""
    stride = None if symbol in access.looked_up else stride_along(access.place, symbol)
    value = None if stride is None else constant_value(stride)
    if value is None:
        return -1.0
    return 3.0 / abs(value) - 1.0 if value else 0.0
