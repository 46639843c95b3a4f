"""Operators that write to elements whose places are in a tensor: `Scatter` definitions.

    b4[i0 < 10, i1 < 8] = b0[i0, i1]                                   the target's old contents
    b4[0, i1 < 8] for i0 < 5 = add at [checked(b1[i0], 10), _]: b2[i0, i1]

On a device sums are atomic. Where eager adds in an order of its own (`index_put` that accumulates
sorts first, as the backward of an embedding does), they are so unless eager numerics are asked for,
in float32 for half types, and unless so many points may meet on an element that they wait for each
other as long as a sort takes. Everything stays a call of ATen where deterministic algorithms are
asked for. On the CPU several points that meet on an element come in eager's order, so one thread
takes them: where eager would share the work between threads, it is left to ATen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Load, Scalar, Scatter
from braze.ir.kernels.scalars import apply, cast, index, literal
from braze.ir.types import MASKS, Size
from braze.lower.coordinates import Coordinate, Coordinates, axis_coordinates, make_axes
from braze.lower.formulas import where
from braze.lower.lowering import OperatorCall, Readable
from braze.lower.operators.indexing import checked, wrapped
from braze.lower.operators.views import positive
from braze.lower.place import whole
from braze.lower.rules import DONE, Lowered, rule
from braze.shapes.expr import ZERO, Expr, constant_value

_HALVES = (torch.float16, torch.bfloat16)
_LEAST_BESIDE = 256
_SERIAL = 32768  # points up to which eager takes one thread
# Points an element at which atomic sums may come one after the other for as long as a sort takes.
_MOST_MEETING = 16384
# Half types are summed in float32, in three times the memory: so many elements take as long
# to go through once more as a sort of few points.
_MOST_WIDENED = 1 << 26
_LEAST_POINTS = 0.5  # an element, of more of them

# Operators that eager has other kernels for where deterministic algorithms are asked for, or whose
# memory it fills then (`torch.utils.deterministic.fill_uninitialized_memory`).
DETERMINISTIC = frozenset(
    f"aten.{name}"
    for name in (
        "scatter.src scatter.value scatter_add.default index_add.default index_copy.default "
        "index_put.default _unsafe_index_put.default embedding_dense_backward.default "
        "empty.memory_format empty_like.default new_empty.default empty_strided.default "
        "new_empty_strided.default"
    ).split()
)

Place: TypeAlias = Callable[[Coordinates], Coordinates]


def _scattered(
    call: OperatorCall,
    base: Value | None,
    shape: Sequence[Size],
    place: Place,
    value: Callable[[Coordinates], Scalar],
    kind: str = "set",
    in_order: bool = True,
    dtype: torch.dtype | None = None,
) -> Lowered:
    """The base (None: zeros) with `value` at `place` for each point of a shape; a dimension of a
    place is plain where it is one of the point's own coordinates. dtype: of sums, if another."""
    result = call.node.outputs[0]
    assert result is not None
    lowering, target_type = call.lowering, call.output()
    if dtype is not None:
        target_type = replace(target_type, dtype=dtype)
    old = axis_coordinates(own := make_axes("i", target_type.shape))
    zero = literal(0, target_type.dtype)
    contents = zero if base is None else cast(lowering.read(base, old), target_type.dtype)
    axes = make_axes("i", tuple(shape))
    at = axis_coordinates(axes)
    positions: list[Scalar | None] = []
    store: list[Expr] = []
    for coordinate in place(at):
        plain = isinstance(coordinate, Expr) and (coordinate in at or coordinate == ZERO)
        store.append(coordinate if plain and isinstance(coordinate, Expr) else ZERO)
        scalar = index(coordinate) if isinstance(coordinate, Expr) else coordinate
        positions.append(None if plain else scalar)
    body = Scatter(kind, tuple(positions), cast(value(at), target_type.dtype), in_order)
    target = lowering.new_buffer(target_type)
    lowering.emit(target, own, old, contents, call.origin)
    if not any(constant_value(size) == 0 for size in shape):
        lowering.emit(target, axes, tuple(store), body, call.origin)
    if dtype is not None:
        return lambda at: Load(target, at)
    lowering.places[result] = whole(target)
    return DONE


def _is_cpu(call: OperatorCall) -> bool:
    return call.output().device.type == "cpu"


def _is_serial(shape: Sequence[Size]) -> bool:
    """Whether eager takes one thread for so many points."""
    total = 1
    for size in shape:
        known = constant_value(size)
        if known is None:
            return False
        total *= known
    return total <= _SERIAL


def _is_shared(others: Sequence[Size]) -> bool:
    """Whether threads find enough elements beside each other to share."""
    return math.prod(constant_value(size) or 1 for size in others) >= _LEAST_BESIDE


def _adds(call: OperatorCall) -> bool:
    """Whether sums in the result's dtype can be scattered."""
    return call.lowering.supports("scatter_add", call.output().dtype)


def _sums(call: OperatorCall, points: Sequence[Size]) -> bool:
    """Whether sums of so many points come out as in eager, and no later: on the CPU it may take
    several threads, and float32 for half types."""
    if not _adds(call):
        return False
    return not _is_cpu(call) or (_is_serial(points) and call.output().dtype not in _HALVES)


def _unordered(call: OperatorCall, points: Sequence[Size], rows: Sequence[Size]) -> bool:
    """Whether sums of so many points that eager sorts may be atomic. rows: the sizes that are
    indexed."""
    if _is_cpu(call) or call.lowering.numerics == "eager" or not _adds(call):
        return False
    counts = [_count(sizes) for sizes in (points, rows, call.output().shape)]
    if None in counts:
        return call.output().dtype not in _HALVES
    total, targets, elements = (max(count or 0, 1) for count in counts)
    others = max(elements // targets, 1)
    is_large = elements > _MOST_WIDENED and total < _LEAST_POINTS * elements
    if is_large and call.output().dtype in _HALVES:
        return False
    return total // others <= _MOST_MEETING * targets


def _count(sizes: Sequence[Size]) -> int | None:
    known = [constant_value(size) for size in sizes]
    return None if None in known else math.prod([size or 0 for size in known])


def _sum_dtype(call: OperatorCall) -> torch.dtype | None:
    """The dtype in which sums are taken that eager would round once; None: that of the result."""
    return torch.float32 if call.output().dtype in _HALVES else None


def _at_dimension(dim: int, place: Coordinate, at: Coordinates) -> Coordinates:
    return (*at[:dim], place, *at[dim + 1 :])


# --- scatter -------------------------------------------------------------------------------------


def _scatter(
    call: OperatorCall, self: Value, dim: int, index: Value, source: Readable, kind: str
) -> Lowered:
    shape, points = call.shape_of(self), call.shape_of(index)
    if not shape or len(points) != len(shape) or 0 in shape:
        return None
    if _is_cpu(call) and not _is_serial(points):
        return None
    dim = positive(dim, len(shape))

    def place(at: Coordinates) -> Coordinates:
        return _at_dimension(dim, checked(call.read(index, at, torch.int64), shape[dim]), at)

    def value(at: Coordinates) -> Scalar:
        here = at if isinstance(source, Value) and call.shape_of(source) else ()
        return call.read(source, here, call.output().dtype)

    return _scattered(call, self, points, place, value, kind)


@rule("scatter.src", "scatter.value", takes_numbers=True)
def lower_scatter(
    call: OperatorCall, self: Value, dim: int, index: Value, source: Readable
) -> Lowered:
    return _scatter(call, self, dim, index, source, "set")


@rule("scatter_add")
def lower_scatter_add(
    call: OperatorCall, self: Value, dim: int, index: Value, src: Value
) -> Lowered:
    if not _sums(call, call.shape_of(index)):
        return None
    return _scatter(call, self, dim, index, src, "add")


# --- along one dimension -------------------------------------------------------------------------


def _indexed(
    call: OperatorCall, self: Value, dim: int, index: Value, source: Value, kind: str
) -> Lowered:
    shape, points = call.shape_of(self), call.shape_of(source)
    if not shape or len(points) != len(shape) or 0 in shape:
        return None
    if len(call.shape_of(index)) != 1 or call.dtype_of(source) != call.output().dtype:
        return None
    dim = positive(dim, len(shape))
    others = [(a, b) for n, (a, b) in enumerate(zip(shape, points)) if n != dim]
    if any(a != b for a, b in others if isinstance(a, int) and isinstance(b, int)):
        return None  # the kernel refuses such rows, also where there are none

    def place(at: Coordinates) -> Coordinates:
        position = checked(call.read(index, (at[dim],), torch.int64), shape[dim])
        return _at_dimension(dim, position, at)

    return _scattered(call, self, points, place, lambda at: call.read(source, at), kind)


@rule("index_add")
def lower_index_add(
    call: OperatorCall, self: Value, dim: int, index: Value, source: Value, *, alpha: object = 1
) -> Lowered:
    if type(alpha) not in (int, float) or alpha != 1 or not _sums(call, call.shape_of(source)):
        return None
    return _indexed(call, self, dim, index, source, "add")


@rule("index_copy")
def lower_index_copy(
    call: OperatorCall, self: Value, dim: int, index: Value, source: Value
) -> Lowered:
    shape = call.shape_of(source)
    others = [size for n, size in enumerate(shape) if n != dim % max(len(shape), 1)]
    if _is_cpu(call) and not _is_serial(shape) and not _is_shared(others):
        return None
    return _indexed(call, self, dim, index, source, "set")


@rule("index_put", "_unsafe_index_put")
def lower_index_put(
    call: OperatorCall,
    self: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Lowered:
    """Indexed dimensions are where `index` has them: together in their place, else in front."""
    shape = call.shape_of(self)
    given = {n: tensor for n, tensor in enumerate(indices) if tensor is not None}
    if any(call.dtype_of(tensor) in MASKS for tensor in given.values()):
        return None
    if 0 in shape or not given or call.dtype_of(values) != call.output().dtype:
        return None
    broadcast = _broadcast([call.shape_of(tensor) for tensor in given.values()])
    if broadcast is None:
        return None
    dims = list(given)
    front = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    rest = [size for n, size in enumerate(shape) if n not in given]
    points = (*rest[:front], *broadcast, *rest[front:])
    is_serial = _is_cpu(call) and _adds(call) and _is_serial(points)
    if accumulate and not (is_serial or _unordered(call, points, [shape[n] for n in given])):
        return None
    width = len(broadcast)

    def place(at: Coordinates) -> Coordinates:
        inner = at[front : front + width]
        others = iter((*at[:front], *at[front + width :]))
        found: list[Coordinate] = []
        for n, size in enumerate(shape):
            if n in given:
                here = call.broadcast(given[n], inner)
                found.append(wrapped(call.read(given[n], here, torch.int64), size))
            else:
                found.append(next(others))
        return tuple(found)

    def value(at: Coordinates) -> Scalar:
        return call.read(values, call.broadcast(values, at))

    kind = "add" if accumulate else "set"
    dtype = _sum_dtype(call) if accumulate and not is_serial else None
    return _scattered(call, self, points, place, value, kind, accumulate, dtype)


@rule("embedding_dense_backward", exact=False)
def lower_embedding_dense_backward(
    call: OperatorCall,
    grad_output: Value,
    indices: Value,
    num_weights: Size,
    padding_idx: Size,
    scale_grad_by_freq: bool,
) -> Lowered:
    points = call.shape_of(grad_output)
    padding = constant_value(padding_idx)
    if scale_grad_by_freq or padding is None or call.dtype_of(grad_output) != call.output().dtype:
        return None
    if not _unordered(call, points, [num_weights]):
        return None

    def row(at: Coordinates) -> Scalar:
        return call.read(indices, at[:-1], torch.int64)

    def place(at: Coordinates) -> Coordinates:
        return (checked(row(at), num_weights), at[-1])

    def value(at: Coordinates) -> Scalar:
        gradient = call.read(grad_output, at)
        if padding < 0:
            return gradient
        return where(apply("eq", row(at), padding), literal(0, gradient.dtype), gradient)

    return _scattered(call, None, points, place, value, "add", True, _sum_dtype(call))


def _broadcast(shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...] | None:
    """The shape that all broadcast to; None where that is not known."""
    width = max(map(len, shapes))
    found: list[Size] = []
    for place in range(width):
        sizes = [s[place - width] for s in shapes if place - width >= -len(s)]
        others = list(dict.fromkeys(size for size in sizes if size != 1))
        if len(others) > 1:
            return None
        found.append(others[0] if others else 1)
    return tuple(found)
