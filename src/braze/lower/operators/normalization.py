"""Softmax and the normalisations: a few folds along dimensions, then one pointwise definition.

Moments take two passes, mean first: accurate where a single pass cancels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Scalar
from braze.ir.kernels.scalars import apply, compute_dtype
from braze.ir.types import Size
from braze.lower.coordinates import Coordinates, plus, quotient, times
from braze.lower.formulas import divide, where
from braze.lower.lowering import OperatorCall
from braze.lower.operators.reductions import (
    count,
    fold,
    kept_shape,
    mean_of,
    normalized_dims,
    squared_deviation,
)
from braze.lower.place import Stored
from braze.lower.rules import DONE, Lowered, rule
from braze.shapes.expr import ZERO

PointBody = Callable[[Coordinates], Scalar]


# --- softmax -----------------------------------------------------------------------------------


def _shifted(
    call: OperatorCall, self: Value, dim: int
) -> tuple[tuple[Size, ...], tuple[int, ...], PointBody, torch.dtype]:
    """(shape, dims, body of x - max, dtype): the maximum is a definition of its own."""
    shape = call.shape_of(self)
    dims = normalized_dims(dim, len(shape))
    dtype = call.compute_dtype

    def read(at: Coordinates) -> Scalar:
        return call.read_as(self, at, call.output().dtype)

    highest = call.temporary(dtype, kept_shape(shape, dims), fold("max", read, shape, dims, True))

    def shifted(at: Coordinates) -> Scalar:
        return apply("sub", read(at), call.read(highest, call.broadcast(highest, at)))

    return shape, dims, shifted, dtype


@rule("_softmax", exact=False)
def lower_softmax(call: OperatorCall, self: Value, dim: int, half_to_float: bool) -> Lowered:
    if 0 in call.shape_of(self):
        return None
    shape, dims, shifted, dtype = _shifted(call, self, dim)
    small = call.temporary(dtype, shape, lambda at: apply("exp", shifted(at)))
    total = call.temporary(
        dtype,
        kept_shape(shape, dims),
        fold("sum", lambda at: call.read(small, at), shape, dims, True),
    )
    return lambda at: divide(call.read(small, at), call.read(total, call.broadcast(total, at)))


@rule("_safe_softmax", exact=False)
def lower_safe_softmax(call: OperatorCall, self: Value, dim: int, dtype: object = None) -> Lowered:
    """Softmax in which a row of nothing but -inf gives zeros."""
    if 0 in call.shape_of(self):
        return None
    shape = call.shape_of(self)
    dims = normalized_dims(dim, len(shape))
    softmax = lower_softmax(call, self, dim, False)
    assert callable(softmax)

    def is_hidden(at: Coordinates) -> Scalar:
        return apply("eq", call.read_as(self, at, call.output().dtype), -math.inf)

    hidden = call.temporary(
        torch.bool, kept_shape(shape, dims), fold("all", is_hidden, shape, dims, True)
    )

    def body(at: Coordinates) -> Scalar:
        is_empty = call.read(hidden, call.broadcast(hidden, at))
        value = softmax(at)
        return where(is_empty, 0.0, value)

    return body


@rule("_log_softmax", exact=False)
def lower_log_softmax(call: OperatorCall, self: Value, dim: int, half_to_float: bool) -> Lowered:
    if 0 in call.shape_of(self):
        return None
    shape, dims, shifted, dtype = _shifted(call, self, dim)
    total = call.temporary(
        dtype,
        kept_shape(shape, dims),
        fold("sum", lambda at: apply("exp", shifted(at)), shape, dims, True),
    )

    # A definition of its own: a loss that reads a few elements need not have the others.
    rest = call.temporary(
        dtype, kept_shape(shape, dims), lambda at: apply("log", call.read(total, at))
    )

    def body(at: Coordinates) -> Scalar:
        return apply("sub", shifted(at), call.read(rest, call.broadcast(rest, at)))

    return body


@rule("_softmax_backward_data", exact=False)
def lower_softmax_backward(
    call: OperatorCall, grad_output: Value, output: Value, dim: int, input_dtype: object
) -> Lowered:
    shape = call.shape_of(output)
    dims = normalized_dims(dim, len(shape))
    dtype = compute_dtype(call.dtype_of(grad_output))

    def product(at: Coordinates) -> Scalar:
        return apply("mul", call.read(grad_output, at, dtype), call.read(output, at, dtype))

    total = call.temporary(dtype, kept_shape(shape, dims), fold("sum", product, shape, dims, True))

    def body(at: Coordinates) -> Scalar:
        gap = apply(
            "sub",
            call.read(grad_output, at, dtype),
            call.read(total, call.broadcast(total, at)),
        )
        return apply("mul", gap, call.read(output, at, dtype))

    return body


@rule("_log_softmax_backward_data", exact=False)
def lower_log_softmax_backward(
    call: OperatorCall, grad_output: Value, output: Value, dim: int, input_dtype: object
) -> Lowered:
    shape = call.shape_of(output)
    dims = normalized_dims(dim, len(shape))
    dtype = compute_dtype(call.dtype_of(grad_output))

    def gradient(at: Coordinates) -> Scalar:
        return call.read(grad_output, at, dtype)

    total = call.temporary(dtype, kept_shape(shape, dims), fold("sum", gradient, shape, dims, True))

    def body(at: Coordinates) -> Scalar:
        scale = apply("exp", call.read(output, at, dtype))
        moved = apply("mul", scale, call.read(total, call.broadcast(total, at)))
        return apply("sub", gradient(at), moved)

    return body


# --- normalisations ----------------------------------------------------------------------------


def _reciprocal_deviation(
    call: OperatorCall,
    read: PointBody,
    mean: Stored,
    shape: Sequence[Size],
    dims: Sequence[int],
    eps: float,
    dtype: torch.dtype,
) -> Stored:
    """1 / sqrt(variance + eps), dimensions kept."""
    from_mean = squared_deviation(call, read, mean, shape, dims)(True)

    def body(at: Coordinates) -> Scalar:
        variance = divide(from_mean(at), count(shape, dims, dtype))
        return apply("rsqrt", apply("add", variance, eps))

    return call.temporary(dtype, kept_shape(shape, dims), body)


def _affine(
    call: OperatorCall, x: Scalar, weight: Value | None, bias: Value | None, at: Coordinates
) -> Scalar:
    """x * weight + bias, each where given, at the coordinates of the parameters."""
    if weight is not None:
        x = apply("mul", x, call.read(weight, at, x.dtype))
    if bias is not None:
        x = apply("add", x, call.read(bias, at, x.dtype))
    return x


@rule("native_layer_norm", exact=False)
def lower_layer_norm(
    call: OperatorCall,
    input: Value,
    normalized_shape: Sequence[Size],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> Lowered:
    shape = call.shape_of(input)
    if 0 in shape:
        return None
    first = len(shape) - len(normalized_shape)
    dims = tuple(range(first, len(shape)))
    dtype = call.compute_dtype

    def read(at: Coordinates) -> Scalar:
        return call.read(input, at, dtype)

    mean = mean_of(call, read, shape, dims, dtype)
    scale = _reciprocal_deviation(call, read, mean, shape, dims, eps, dtype)

    def body(at: Coordinates) -> Scalar:
        there = call.broadcast(mean, at)
        x = apply("mul", apply("sub", read(at), call.read(mean, there)), call.read(scale, there))
        return _affine(call, x, weight, bias, at[first:])

    call.result(0, body)
    for position, place in ((1, mean), (2, scale)):
        if call.is_used(position):
            call.result(position, functools.partial(call.read, place))
    return DONE


@rule("_fused_rms_norm", exact=False)
def lower_rms_norm(
    call: OperatorCall,
    input: Value,
    normalized_shape: Sequence[Size],
    weight: Value | None,
    eps: float | None,
) -> Lowered:
    shape = call.shape_of(input)
    if 0 in shape:
        return None
    first = len(shape) - len(normalized_shape)
    dims = tuple(range(first, len(shape)))
    dtype = call.compute_dtype
    small = torch.finfo(dtype).eps if eps is None else eps

    def read(at: Coordinates) -> Scalar:
        return call.read(input, at, dtype)

    def square(at: Coordinates) -> Scalar:
        return apply("mul", read(at), read(at))

    mean = mean_of(call, square, shape, dims, dtype)
    scale = call.temporary(
        dtype,
        kept_shape(shape, dims),
        lambda at: apply("rsqrt", apply("add", call.read(mean, at), small)),
    )

    def body(at: Coordinates) -> Scalar:
        x = apply("mul", read(at), call.read(scale, call.broadcast(scale, at)))
        return _affine(call, x, weight, None, at[first:])

    call.result(0, body)
    if call.is_used(1):
        call.result(1, lambda at: call.read(scale, at))
    return DONE


@rule("native_group_norm", exact=False)
def lower_group_norm(
    call: OperatorCall,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    eps: float,
) -> Lowered:
    shape = call.shape_of(input)
    if 0 in shape or not isinstance(C, int):
        return None
    dtype = call.compute_dtype
    per_group = C // group
    grouped: tuple[Size, ...] = (shape[0], group, per_group, *shape[2:])
    dims = tuple(range(2, len(grouped)))

    def read(at: Coordinates) -> Scalar:
        channel = plus(times(at[1], per_group), at[2])
        return call.read(input, (at[0], channel, *at[3:]), dtype)

    mean = mean_of(call, read, grouped, dims, dtype)
    scale = _reciprocal_deviation(call, read, mean, grouped, dims, eps, dtype)
    zeros = (ZERO,) * len(dims)

    def body(at: Coordinates) -> Scalar:
        there = (at[0], quotient(at[1], per_group), *zeros)
        x = call.read(input, at, dtype)
        x = apply("mul", apply("sub", x, call.read(mean, there)), call.read(scale, there))
        return _affine(call, x, weight, bias, at[1:2])

    call.result(0, body)
    for position, place in ((1, mean), (2, scale)):
        if call.is_used(position):
            call.result(position, _of_group(call, place, zeros))
    return DONE


def _of_group(call: OperatorCall, place: Stored, zeros: Coordinates) -> PointBody:
    return lambda at: call.read(place, (*at, *zeros))
