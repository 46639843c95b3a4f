"""Operators that read at indices found in a tensor: negative ones wrap, others are checked."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Guarded, Index, InRange, Load, Reduce, Scalar
from braze.ir.kernels.run_loops import evaluate_scalar
from braze.ir.kernels.scalars import apply, index, walk
from braze.ir.types import MASKS, Size
from braze.lower.coordinates import Coordinate, Coordinates, product, unravel
from braze.lower.lowering import OperatorCall
from braze.lower.operators.views import positive
from braze.lower.rules import Lowered, rule
from braze.shapes.expr import ZERO, Expr, Symbol, as_expr, floor_div, symbols

# Longest axis whose positions are worked out one by one.
_MOST_POSITIONS = 65536


def static_position(position: Scalar, size: Size, may_wrap: bool) -> Expr | None:
    """The index expression that a computed index always equals: `scale * i + offset` or
    `i * numerator // denominator`, tried on every value of its only symbol. None where it is not
    of that form or ever leaves [0, size), or [-size, size) where negative ones wrap."""
    found = set[Symbol]()
    for node in walk(position):
        if isinstance(node, (Load, Reduce, InRange, Guarded)):
            return None
        if isinstance(node, Index):
            found |= symbols(node.expr)
    if len(found) > 1 or not isinstance(size, int):
        return None
    symbol = found.pop() if found else Symbol("i", 0, 0)
    if symbol.upper is None or symbol.upper >= _MOST_POSITIONS:
        return None
    values = evaluate_scalar(position, symbol, symbol.upper + 1)
    if may_wrap:
        values = torch.where(values < 0, values + size, values)
    if bool((values < 0).any()) or bool((values >= size).any()):
        return None
    return _fitted(values, symbol, size)


def _fitted(values: torch.Tensor, symbol: Symbol, size: int) -> Expr | None:
    count = len(values)
    places = torch.arange(count, device="cpu")
    first = int(values[0])
    step = int(values[1]) - first if count > 1 else 0
    if torch.equal(values, places * step + first):
        return as_expr(symbol) * step + first
    if torch.equal(values, places * size // count):
        return floor_div(as_expr(symbol) * size, count)
    return None


def wrapped(position: Scalar, size: Size) -> Coordinate:
    """An index counted from the end where it is negative, then checked; an index expression where
    the positions are known."""
    known = static_position(position, size, may_wrap=True)
    if known is not None:
        return known
    from_end = apply("add", position, index(size))
    return InRange(apply("where", apply("lt", position, 0), from_end, position), size)


def checked(position: Scalar, size: Size) -> Coordinate:
    """An index that must not be negative; an index expression where the positions are known."""
    known = static_position(position, size, may_wrap=False)
    return InRange(position, size) if known is None else known


def _index_at(call: OperatorCall, source: Value, at: Coordinates) -> Scalar:
    return call.read(source, call.broadcast(source, at), torch.int64)


@rule("embedding")
def lower_embedding(
    call: OperatorCall,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Lowered:
    rows = call.shape_of(weight)[0]

    def body(at: Coordinates) -> Scalar:
        row = checked(call.read(indices, at[:-1], torch.int64), rows)
        return call.read(weight, (row, at[-1]))

    return body


@rule("index_select")
def lower_index_select(call: OperatorCall, self: Value, dim: int, index: Value) -> Lowered:
    shape = call.shape_of(self)
    if not shape:
        return None
    dim = positive(dim, len(shape))
    is_single = not call.shape_of(index)

    def body(at: Coordinates) -> Scalar:
        place = () if is_single else (at[dim],)
        row = checked(call.read(index, place, torch.int64), shape[dim])
        return call.read(self, (*at[:dim], row, *at[dim + 1 :]))

    return body


@rule("gather")
def lower_gather(
    call: OperatorCall, self: Value, dim: int, index: Value, *, sparse_grad: bool = False
) -> Lowered:
    shape = call.shape_of(self)
    if not shape or len(call.shape_of(index)) != len(shape) or 0 in shape:
        return None
    dim = positive(dim, len(shape))

    def body(at: Coordinates) -> Scalar:
        row = checked(call.read(index, at, torch.int64), shape[dim])
        return call.read(self, (*at[:dim], row, *at[dim + 1 :]))

    return body


@rule("take")
def lower_take(call: OperatorCall, self: Value, index: Value) -> Lowered:
    shape = call.shape_of(self)
    total = product(shape)

    if not shape:
        return None

    def body(at: Coordinates) -> Scalar:
        position = wrapped(call.read(index, at, torch.int64), total)
        if total == 1:  # `unravel` would leave out the check
            return call.read(self, (*[ZERO] * (len(shape) - 1), position))
        return call.read(self, unravel(position, shape))

    return body


@rule("index.Tensor")
def lower_index(call: OperatorCall, self: Value, indices: Sequence[Value | None]) -> Lowered:
    return _advanced_index(call, self, indices)


@rule("_unsafe_index.Tensor")
def lower_unsafe_index(call: OperatorCall, self: Value, indices: Sequence[Value | None]) -> Lowered:
    return _advanced_index(call, self, indices)


def _advanced_index(call: OperatorCall, self: Value, indices: Sequence[Value | None]) -> Lowered:
    """Indexed dimensions become the broadcast dimensions of the indices: in their place where
    they stand together, else in front."""
    shape = call.shape_of(self)
    given = {n: tensor for n, tensor in enumerate(indices) if tensor is not None}
    if any(call.dtype_of(tensor) in MASKS for tensor in given.values()):
        return None
    if 0 in shape or not given:
        return None
    width = max(len(call.shape_of(tensor)) for tensor in given.values())
    places = list(given)
    is_together = places == list(range(places[0], places[0] + len(places)))
    front = places[0] if is_together else 0

    def body(at: Coordinates) -> Scalar:
        inner = at[front : front + width]
        rest = iter((*at[:front], *at[front + width :]))
        point: list[Coordinate] = []
        for n, size in enumerate(shape):
            if n in given:
                point.append(wrapped(_index_at(call, given[n], inner), size))
            else:
                point.append(next(rest))
        return call.read(self, tuple(point))

    return body
