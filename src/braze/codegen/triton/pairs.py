"""Loads of one of two neighbours for both points of a pair: complex numbers.

    x[.., 2 * i] and x[.., 2 * i + 1], over i and j < 2    ->    x[.., 2 * i + j], then one of two

Each alone would be read two bytes at a time; together they are whole lines of memory, and threads
exchange nothing, since each of them holds whole pairs.
Refused: tiles and rows, indices that are loaded, and places that may lie outside of the buffer.
"""

from __future__ import annotations

from braze.codegen.triton.tiling import Tiling
from braze.frozen import frozen
from braze.ir.kernels.loops import Load
from braze.ir.kernels.schedule import offset
from braze.shapes.expr import Expr, as_expr, bounds, constant_value, symbols

_LEAST_BLOCK = 64


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
    bit = _constant(place) % 2
    return PairLoad(place - bit + point, bool(bit))


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
    return any(factor % 2 for _, factor in (place - _constant(place)).terms)


def _constant(place: Expr) -> int:
    """What is added to the symbols' multiples."""
    rest = as_expr(place)
    zero = Expr(tuple([term for term in rest.terms if symbols(Expr((term,)))]))
    found = constant_value(rest - zero)
    assert found is not None
    return found
