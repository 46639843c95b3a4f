"""Batch normalisation in training and in evaluation: statistics over all but dimension 1."""

from __future__ import annotations

from collections.abc import Callable

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Scalar
from braze.ir.kernels.scalars import apply, cast, compute_dtype, literal
from braze.lower.coordinates import Coordinates
from braze.lower.formulas import divide
from braze.lower.lowering import OperatorCall
from braze.lower.operators.reductions import count, fold
from braze.lower.place import Stored
from braze.lower.rules import DONE, Body, Lowered, rule

ChannelBody = Callable[[Coordinates], Scalar]


def _normalized(
    call: OperatorCall,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    mean: ChannelBody,
    scale: ChannelBody,
) -> Body:
    """(x - mean[c]) * scale[c] * weight[c] + bias[c], c the second coordinate."""
    dtype = call.compute_dtype

    def body(at: Coordinates) -> Scalar:
        channel = at[1:2]
        x = apply("sub", call.read(input, at, dtype), mean(channel))
        x = apply("mul", x, scale(channel))
        if weight is not None:
            x = apply("mul", x, call.read(weight, channel, dtype))
        return x if bias is None else apply("add", x, call.read(bias, channel, dtype))

    return body


def _inverse_deviation(variance: ChannelBody, eps: float) -> ChannelBody:
    return lambda channel: apply("rsqrt", apply("add", variance(channel), eps))


def _evaluated(
    call: OperatorCall,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    eps: float,
) -> None:
    """Normalise by the running statistics; what is saved for the backward is empty or unused."""
    dtype = call.compute_dtype

    def mean(channel: Coordinates) -> Scalar:
        return call.read(running_mean, channel, dtype)

    def variance(channel: Coordinates) -> Scalar:
        return call.read(running_var, channel, dtype)

    scale = _inverse_deviation(variance, eps)
    call.result(0, _normalized(call, input, weight, bias, mean, scale))
    for position, source in ((1, mean), (2, scale)):
        if call.node.outputs[position] is not None and call.is_used(position):
            call.result(position, source)


def _trained(
    call: OperatorCall, input: Value, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Stored, Stored]:
    """Normalise by the batch; returns (mean, variance, biased) a channel."""
    shape = call.shape_of(input)
    dims = tuple(n for n in range(len(shape)) if n != 1)
    dtype = call.compute_dtype

    def read(at: Coordinates) -> Scalar:
        return call.read(input, at, dtype)

    total = fold("sum", read, shape, dims, False)
    number = count(shape, dims, dtype)
    mean = call.temporary(dtype, shape[1:2], lambda at: divide(total(at), number))

    def deviation(at: Coordinates) -> Scalar:
        gap = apply("sub", read(at), call.read(mean, at[1:2]))
        return apply("mul", gap, gap)

    spread = fold("sum", deviation, shape, dims, False)
    variance = call.temporary(dtype, shape[1:2], lambda at: divide(spread(at), number))

    def mean_of(channel: Coordinates) -> Scalar:
        return call.read(mean, channel)

    scale = _inverse_deviation(lambda channel: call.read(variance, channel), eps)
    call.result(0, _normalized(call, input, weight, bias, mean_of, scale))
    for position, source in ((1, mean_of), (2, scale)):
        if call.is_used(position):
            call.result(position, source)
    return mean, variance


@rule("_native_batch_norm_legit_no_training", exact=False)
def lower_no_training(
    call: OperatorCall,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> Lowered:
    if any(call.is_used(n) and 0 in call.output(n).shape for n in (1, 2)):
        return None
    _evaluated(call, input, weight, bias, running_mean, running_var, eps)
    return DONE


@rule("native_batch_norm", "cudnn_batch_norm", exact=False)
def lower_batch_norm(
    call: OperatorCall,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Lowered:
    """In training this form changes the running statistics in place: left to ATen."""
    if training or running_mean is None or running_var is None:
        return None
    return lower_no_training(call, input, weight, bias, running_mean, running_var, momentum, eps)


@rule("_native_batch_norm_legit.no_stats", exact=False)
def lower_no_stats(
    call: OperatorCall,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Lowered:
    if not training or 0 in call.shape_of(input):
        return None
    _trained(call, input, weight, bias, eps)
    return DONE


@rule("_native_batch_norm_legit_functional", exact=False)
def lower_functional(
    call: OperatorCall,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> Lowered:
    """(result, mean, 1 / deviation, new running mean, new running variance)."""
    if 0 in call.shape_of(input):
        return None
    if not training:
        if any(call.is_used(n) and 0 in call.output(n).shape for n in (1, 2)):
            return None
        _evaluated(call, input, weight, bias, running_mean, running_var, eps)
        call.result(3, lambda at: call.read(running_mean, at))
        call.result(4, lambda at: call.read(running_var, at))
        return DONE
    mean, variance = _trained(call, input, weight, bias, eps)
    shape = call.shape_of(input)
    dims = [n for n in range(len(shape)) if n != 1]

    def unbiased(at: Coordinates) -> Scalar:
        biased = call.read(variance, at)
        number = count(shape, dims, biased.dtype)
        freedom = apply("maximum", apply("sub", number, 1.0), 1.0)
        return apply("mul", biased, divide(number, freedom))

    _blend(call, 3, running_mean, lambda at: call.read(mean, at), momentum)
    _blend(call, 4, running_var, unbiased, momentum)
    return DONE


def _blend(
    call: OperatorCall, position: int, running: Value, now: ChannelBody, momentum: float
) -> None:
    """(1 - momentum) * running + momentum * now."""
    if not call.is_used(position):
        return
    dtype = compute_dtype(call.output(position).dtype)

    def body(at: Coordinates) -> Scalar:
        old = apply("mul", call.read(running, at, dtype), 1.0 - momentum)
        new = apply("mul", cast(now(at), dtype), literal(momentum, dtype))
        return apply("add", old, new)

    call.result(position, body)
