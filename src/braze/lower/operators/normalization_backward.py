"""Backward formulas of the normalisations.

For y = h * weight + bias with h = (x - mean) * scale, and g = dy * weight:

    dx      = scale * (g - mean(g) - h * mean(g * h))     (means over the normalised dimensions)
    dweight = sum(dy * h),  dbias = sum(dy)               (over the other dimensions)

An RMS norm subtracts no mean, and its gradient no mean(g). A batch norm's weight is the same for
all that is summed up: its means are those two sums.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Scalar
from braze.ir.kernels.scalars import apply, compute_dtype
from braze.ir.types import Size
from braze.lower.coordinates import Coordinates, plus, quotient, remainder, times
from braze.lower.formulas import divide
from braze.lower.lowering import OperatorCall
from braze.lower.operators.reductions import count, fold, kept_shape, mean_of
from braze.lower.place import Stored
from braze.lower.rules import DONE, Body, Lowered, rule

PointBody = Callable[[Coordinates], Scalar]


def _input_gradient(
    call: OperatorCall,
    gradient: PointBody,
    normal: PointBody,
    scale: PointBody,
    shape: Sequence[Size],
    dims: Sequence[int],
) -> PointBody:
    """dx over `shape`, from g, h and scale over the same coordinates."""
    dtype = compute_dtype(call.output().dtype)

    def weighted(at: Coordinates) -> Scalar:
        return apply("mul", gradient(at), normal(at))

    mean = mean_of(call, gradient, shape, dims, dtype)
    moment = mean_of(call, weighted, shape, dims, dtype)
    assert mean.root.shape == kept_shape(shape, dims)

    def body(at: Coordinates) -> Scalar:
        there = call.broadcast(mean, at)
        rest = apply("sub", gradient(at), call.read(mean, there))
        rest = apply("sub", rest, apply("mul", normal(at), call.read(moment, there)))
        return apply("mul", rest, scale(at))

    return body


def _parameter_gradients(
    call: OperatorCall,
    upstream: PointBody,
    normal: PointBody,
    shape: Sequence[Size],
    dims: Sequence[int],
    mask: Sequence[bool],
) -> None:
    """dweight and dbias, where asked for: sums over `dims`."""
    bodies: tuple[Body, Body] = (
        fold("sum", lambda at: apply("mul", upstream(at), normal(at)), shape, dims, False),
        fold("sum", upstream, shape, dims, False),
    )
    for position, body in enumerate(bodies, start=1):
        if mask[position] and call.is_used(position):
            call.result(position, body)


@rule("native_layer_norm_backward", exact=False)
def lower_layer_norm_backward(
    call: OperatorCall,
    grad_out: Value,
    input: Value,
    normalized_shape: Sequence[Size],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Sequence[bool],
) -> Lowered:
    shape = call.shape_of(input)
    if not _has_elements(shape):
        return None
    first = len(shape) - len(normalized_shape)
    dtype = compute_dtype(call.dtype_of(input))  # there may be no gradient of the input

    def upstream(at: Coordinates) -> Scalar:
        return call.read(grad_out, at, dtype)

    def scale(at: Coordinates) -> Scalar:
        return call.read(rstd, call.broadcast(rstd, at), dtype)

    def normal(at: Coordinates) -> Scalar:
        centre = call.read(mean, call.broadcast(mean, at), dtype)
        return apply("mul", apply("sub", call.read(input, at, dtype), centre), scale(at))

    def gradient(at: Coordinates) -> Scalar:
        if weight is None:
            return upstream(at)
        return apply("mul", upstream(at), call.read(weight, at[first:], dtype))

    dims = tuple(range(first, len(shape)))
    if output_mask[0] and call.is_used(0):
        call.result(0, _input_gradient(call, gradient, normal, scale, shape, dims))
    _parameter_gradients(call, upstream, normal, shape, tuple(range(first)), output_mask)
    return DONE


@rule("_fused_rms_norm_backward", exact=False)
def lower_rms_norm_backward(
    call: OperatorCall,
    grad_out: Value,
    input: Value,
    normalized_shape: Sequence[Size],
    rstd: Value,
    weight: Value | None,
    output_mask: Sequence[bool],
) -> Lowered:
    shape = call.shape_of(input)
    if not _has_elements(shape):
        return None
    first = len(shape) - len(normalized_shape)
    dims = tuple(range(first, len(shape)))
    dtype = compute_dtype(call.dtype_of(input))  # there may be no gradient of the input

    def upstream(at: Coordinates) -> Scalar:
        return call.read(grad_out, at, dtype)

    def scale(at: Coordinates) -> Scalar:
        return call.read(rstd, call.broadcast(rstd, at), dtype)

    def normal(at: Coordinates) -> Scalar:
        return apply("mul", call.read(input, at, dtype), scale(at))

    def gradient(at: Coordinates) -> Scalar:
        if weight is None:
            return upstream(at)
        return apply("mul", upstream(at), call.read(weight, at[first:], dtype))

    def weighted(at: Coordinates) -> Scalar:
        return apply("mul", gradient(at), normal(at))

    if output_mask[0] and call.is_used(0):
        moment = mean_of(call, weighted, shape, dims, compute_dtype(call.output().dtype))

        def body(at: Coordinates) -> Scalar:
            mean = call.read(moment, call.broadcast(moment, at))
            return apply(
                "mul", apply("sub", gradient(at), apply("mul", normal(at), mean)), scale(at)
            )

        call.result(0, body)
    _parameter_gradients(call, upstream, normal, shape, tuple(range(first)), (*output_mask, False))
    return DONE


@rule("native_batch_norm_backward", exact=False)
def lower_batch_norm_backward(
    call: OperatorCall,
    grad_out: Value,
    input: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_invstd: Value | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Lowered:
    shape = call.shape_of(input)
    centre, spread = (save_mean, save_invstd) if train else (running_mean, running_var)
    if call.node.outputs[0] is None or not _has_elements(shape) or centre is None or spread is None:
        return None
    dtype = call.compute_dtype

    def upstream(at: Coordinates) -> Scalar:
        return call.read(grad_out, at, dtype)

    def scale(at: Coordinates) -> Scalar:
        found = call.read(spread, at[1:2], dtype)
        return found if train else apply("rsqrt", apply("add", found, eps))

    def normal(at: Coordinates) -> Scalar:
        gap = apply("sub", call.read(input, at, dtype), call.read(centre, at[1:2], dtype))
        return apply("mul", gap, scale(at))

    def factor(at: Coordinates) -> Scalar:
        found = scale(at)
        return found if weight is None else apply("mul", found, call.read(weight, at[1:2], dtype))

    wanted = [output_mask[n] and call.is_used(n) for n in range(3)]
    dims = tuple(n for n in range(len(shape)) if n != 1)
    bodies = (lambda at: apply("mul", upstream(at), normal(at)), upstream)
    sums = [
        _channel_sum(call, n, fold("sum", body, shape, dims, False), wanted[n])
        if wanted[n] or (train and wanted[0])
        else None
        for n, body in enumerate(bodies, start=1)
    ]
    number = count(shape, dims, dtype)

    def gap(at: Coordinates) -> Scalar:
        """What is scaled: of dy alone where the statistics are constants."""
        if not train:
            return upstream(at)
        moment, mean = (divide(call.read(s, at[1:2]), number) for s in sums if s is not None)
        rest = apply("sub", upstream(at), mean)
        return apply("sub", rest, apply("mul", normal(at), moment))

    if wanted[0]:
        call.result(0, lambda at: apply("mul", gap(at), factor(at)))
    return DONE


def _channel_sum(call: OperatorCall, position: int, body: Body, is_wanted: bool) -> Stored:
    """A sum as precise as it is computed, which is the result of that position where asked for."""
    dtype = call.compute_dtype
    if is_wanted and call.output(position).dtype == dtype:
        return call.result(position, body)
    shape = call.shape_of(call.node.args[1])[1:2]
    made = call.temporary(dtype, shape, body)
    if is_wanted:
        call.result(position, functools.partial(call.read, made))
    return made


@rule("native_group_norm_backward", exact=False)
def lower_group_norm_backward(
    call: OperatorCall,
    grad_out: Value,
    input: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    output_mask: Sequence[bool],
) -> Lowered:
    shape = call.shape_of(input)
    if call.node.outputs[0] is None or not _has_elements(shape) or not isinstance(C, int):
        return None
    dtype = call.compute_dtype
    per_group = C // group
    grouped: tuple[Size, ...] = (shape[0], group, per_group, *shape[2:])

    def flat(at: Coordinates) -> Coordinates:
        return (at[0], plus(times(at[1], per_group), at[2]), *at[3:])

    def upstream(at: Coordinates) -> Scalar:
        return call.read(grad_out, flat(at), dtype)

    def scale(at: Coordinates) -> Scalar:
        return call.read(rstd, at[:2], dtype)

    def normal(at: Coordinates) -> Scalar:
        gap = apply("sub", call.read(input, flat(at), dtype), call.read(mean, at[:2], dtype))
        return apply("mul", gap, scale(at))

    def gradient(at: Coordinates) -> Scalar:
        if weight is None:
            return upstream(at)
        return apply("mul", upstream(at), call.read(weight, flat(at)[1:2], dtype))

    def split(at: Coordinates) -> Coordinates:
        return (at[0], quotient(at[1], per_group), remainder(at[1], per_group), *at[2:])

    if output_mask[0] and call.is_used(0):
        dims = tuple(range(2, len(grouped)))
        by_group = _input_gradient(call, gradient, normal, scale, grouped, dims)
        call.result(0, lambda at: by_group(split(at)))
    others = tuple(n for n in range(len(shape)) if n != 1)
    _parameter_gradients(
        call,
        lambda at: upstream(split(at)),
        lambda at: normal(split(at)),
        shape,
        others,
        output_mask,
    )
    return DONE


def _has_elements(shape: Sequence[Size]) -> bool:
    return 0 not in shape
