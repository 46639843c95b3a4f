"""Loads and stores of two neighbours in memory: complex numbers, pairs of a rotary embedding.

    x[.., 2 * i] and x[.., 2 * i + 1], over i and j < 2    ->    x[.., 2 * i + j], then one of two

Each alone would be read two bytes at a time; together they are whole lines of memory, and threads
exchange nothing, since each of them holds whole pairs. Where both stand in statements of their own,
or in one expression, without a j, they are read, and written, as one block of pairs:

    x[2 * i] * w - x[2 * i + 1] * z;    y[2 * i] = a; y[2 * i + 1] = b

Refused: tiles and rows, indices that are loaded, places that may lie outside of the buffer, pairs
that begin at odd places, and writes between which the target is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from braze.codegen.triton.tiling import Tiling
from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, Guarded, Load, Scalar, Scatter
from braze.ir.kernels.scalars import children, loads
from braze.ir.kernels.schedule import Accumulate, Store, offset, scalar_of
from braze.shapes.expr import Expr, as_expr, bounds, constant_value, symbols

_LEAST_BLOCK = 64
_Place: TypeAlias = tuple[Buffer, Expr]
_SIZES = frozenset({2, 4, 8})


@frozen
class PairLoad:
    """place: where both are read, along the points; is_second: which of them is wanted."""

    place: Expr
    is_second: bool


def pair_load(load: Load, tiling: Tiling) -> PairLoad | None:
    """The load as one of pairs, if it is such."""
    if tiling.reduced or len(tiling.dimensions) != 1:
        return None
    (dimension,) = tiling.dimensions
    if dimension.block < _LEAST_BLOCK or len(dimension.loops) < 2:
        return None
    point, size = dimension.loops[-1]
    if constant_value(size) != 2:
        return None
    places = [c for c in load.coordinates if isinstance(c, Expr)]
    if len(places) < len(load.coordinates) or any(point in symbols(c) for c in places):
        return None
    if not _holds_pairs(load, places):
        return None
    place = offset(load.buffer, places)
    bit = _constant_part(place) % 2
    return PairLoad(place - bit + point, bool(bit))


@frozen
class Neighbours:
    """loads: of places that are read together, the first of the two, and whether it is the second.
    stores: of a statement that writes the second of two, the number of the one that writes the
    first."""

    loads: Mapping[_Place, tuple[Expr, bool]]
    stores: Mapping[int, int]


NO_NEIGHBOURS = Neighbours(MappingProxyType({}), MappingProxyType({}))


def find_neighbours(statements: Sequence[Store | Accumulate], tiling: Tiling) -> Neighbours:
    """Those among the loads and stores of statements that follow each other."""
    if tiling.reduced or len(tiling.dimensions) != 1 or not tiling.dimensions[0].block:
        return NO_NEIGHBOURS
    read = {
        (load.buffer, offset(load.buffer, load.coordinates))
        for statement in statements
        for load in _unconditional(scalar_of(statement))
        if _is_plain(load.buffer, load.coordinates)
    }
    loaded: dict[_Place, tuple[Expr, bool]] = {}
    for buffer, place in read:
        second = place + 1
        if _is_even(place) and (buffer, second) in read:
            loaded[buffer, place] = place, False
            loaded[buffer, second] = place, True
    return Neighbours(loaded, _stores(statements))


# --- private ---------------------------------------------------------------------------------


def _holds_pairs(load: Load, places: list[Expr]) -> bool:
    """Whether the place and its neighbour are elements of the buffer: an even number of them lie
    beside each other, and the place is an even one, or one behind such."""
    found = False
    for place, size, stride in zip(places, load.buffer.shape, load.buffer.stride, strict=True):
        low, high = bounds(place)
        most, step = constant_value(size), constant_value(stride)
        if most is None or step is None or low is None or high is None:
            return False
        if low < 0 or high >= most:
            return False
        if step == 1 and most > 1:
            if found or most % 2 or _has_odd_terms(place):
                return False
            found = True
        elif step % 2 and most > 1:
            return False
    return found


def _has_odd_terms(place: Expr) -> bool:
    """Whether a symbol's multiple is odd somewhere."""
    return any(factor % 2 for _, factor in (place - _constant_part(place)).terms)


def _constant_part(place: Expr) -> int:
    """What is added to the symbols' multiples."""
    rest = as_expr(place)
    zero = Expr(tuple([term for term in rest.terms if symbols(Expr((term,)))]))
    found = constant_value(rest - zero)
    assert found is not None
    return found


def _stores(statements: Sequence[Store | Accumulate]) -> dict[int, int]:
    waiting: dict[_Place, int] = {}
    found: dict[int, int] = {}
    for number, statement in enumerate(statements):
        read = {load.buffer for load in loads(scalar_of(statement))}
        waiting = {key: first for key, first in waiting.items() if key[0] not in read}
        if not isinstance(statement, Store) or isinstance(statement.value, Scatter):
            continue
        if not _is_plain(statement.target, statement.coordinates):
            continue
        place = offset(statement.target, statement.coordinates)
        first = waiting.pop((statement.target, place - 1), None)
        if first is not None:
            found[number] = first
        elif _is_even(place):
            waiting[statement.target, place] = number
    return found


def _unconditional(scalar: Scalar) -> Iterator[Load]:
    """Loads that every point makes."""
    seen: set[int] = set()
    pending = [scalar]
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Load):
            yield node
        pending += [node.condition] if isinstance(node, Guarded) else children(node)


def _is_plain(buffer: Buffer, coordinates: Sequence[Expr | Scalar]) -> bool:
    is_number = buffer.dtype.is_floating_point and buffer.dtype.itemsize in _SIZES
    return is_number and all(isinstance(c, Expr) for c in coordinates)


def _is_even(place: Expr) -> bool:
    """Whether it is an even number at every point, and not the same one at all."""
    if not symbols(place) or _has_odd_terms(place):
        return False
    return _constant_part(place) % 2 == 0
