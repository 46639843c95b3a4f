"""Losses: an elementwise term, and its sum or mean; negative log likelihood with its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Guarded, InRange, Scalar
from braze.ir.kernels.scalars import apply, compute_dtype, literal
from braze.ir.types import Size
from braze.lower.coordinates import Coordinates, as_scalar
from braze.lower.formulas import divide, less, square, where
from braze.lower.lowering import OperatorCall
from braze.lower.operators.pointwise import elementwise
from braze.lower.operators.reductions import count, fold
from braze.lower.rules import DONE, Body, Lowered, rule

NONE, MEAN, SUM = 0, 1, 2


def broadcast_shape(shapes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    """The shape that all broadcast to; they are known to."""
    result: list[Size] = []
    for place in range(1, max(map(len, shapes)) + 1):
        sizes = [shape[-place] for shape in shapes if len(shape) >= place]
        result.append(next((size for size in sizes if size != 1), 1))
    return tuple(reversed(result))


def _reduced(
    call: OperatorCall, formula: Callable[..., Scalar], operands: list[Any], reduction: int
) -> Body:
    """The terms, or their sum, or their mean."""
    term = elementwise(call, formula, *operands)
    if reduction == NONE:
        return term
    shape = broadcast_shape([call.shape_of(operand) for operand in operands])
    dims = tuple(range(len(shape)))
    total = fold("sum", term, shape, dims, False)
    if reduction == SUM:
        return total
    return lambda at: divide(total(at), count(shape, dims, call.compute_dtype))


@rule("mse_loss", exact=False)
def lower_mse_loss(
    call: OperatorCall, self: Value, target: Value, reduction: int = MEAN
) -> Lowered:
    def formula(x: Scalar, y: Scalar) -> Scalar:
        return square(apply("sub", x, y))

    return _reduced(call, formula, [self, target], reduction)


@rule("smooth_l1_loss", exact=False)
def lower_smooth_l1_loss(
    call: OperatorCall, self: Value, target: Value, reduction: int = MEAN, beta: float = 1.0
) -> Lowered:
    def formula(x: Scalar, y: Scalar) -> Scalar:
        gap = apply("abs", apply("sub", x, y))
        if beta == 0:
            return gap
        near = divide(apply("mul", square(gap), 0.5), beta)
        return where(less(gap, beta), near, apply("sub", gap, 0.5 * beta))

    return _reduced(call, formula, [self, target], reduction)


@rule("huber_loss", exact=False)
def lower_huber_loss(
    call: OperatorCall, self: Value, target: Value, reduction: int = MEAN, delta: float = 1.0
) -> Lowered:
    def formula(x: Scalar, y: Scalar) -> Scalar:
        gap = apply("abs", apply("sub", x, y))
        far = apply("mul", apply("sub", gap, 0.5 * delta), delta)
        return where(apply("le", gap, delta), apply("mul", square(gap), 0.5), far)

    return _reduced(call, formula, [self, target], reduction)


@rule("soft_margin_loss", exact=False)
def lower_soft_margin_loss(
    call: OperatorCall, self: Value, target: Value, reduction: int = MEAN
) -> Lowered:
    def formula(x: Scalar, y: Scalar) -> Scalar:
        return apply("log1p", apply("exp", apply("mul", apply("neg", x), y)))

    return _reduced(call, formula, [self, target], reduction)


@rule("binary_cross_entropy_with_logits", exact=False)
def lower_bce_with_logits(
    call: OperatorCall,
    self: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = MEAN,
) -> Lowered:
    given = [value for value in (weight, pos_weight) if value is not None]

    def formula(x: Scalar, y: Scalar, *weights: Scalar) -> Scalar:
        rest = list(weights)
        scale = rest.pop(0) if weight is not None else None
        soft = apply("log1p", apply("exp", apply("neg", apply("abs", x))))
        soft = apply("add", soft, apply("maximum", apply("neg", x), 0.0))
        if pos_weight is not None:
            gain = apply("add", apply("mul", apply("sub", rest.pop(0), 1.0), y), 1.0)
            soft = apply("mul", gain, soft)
        one_minus = apply("sub", literal(1.0, y.dtype), y)
        loss = apply("add", apply("mul", one_minus, x), soft)
        return loss if scale is None else apply("mul", loss, scale)

    return _reduced(call, formula, [self, target, *given], reduction)


# --- negative log likelihood -------------------------------------------------------------------


def _nll_parts(
    call: OperatorCall, self: Value, target: Value, weight: Value | None, ignore_index: int
) -> tuple[Callable[[Coordinates], Scalar], Callable[[Coordinates], Scalar], torch.dtype]:
    """(weight of a target, weighted loss of a target, dtype); ignored targets give zeros and are
    not checked. Targets have the shape of self without dimension 1 (or 0 of a vector)."""
    shape = call.shape_of(self)
    channel = 1 if len(shape) > 1 else 0
    dtype = compute_dtype(call.dtype_of(self))

    def choice(at: Coordinates) -> tuple[Scalar, Scalar]:
        label = call.read(target, at, torch.int64)
        return apply("ne", label, ignore_index), InRange(label, shape[channel])

    def scale(at: Coordinates) -> Scalar:
        is_counted, label = choice(at)
        one = literal(1.0, dtype) if weight is None else call.read(weight, (label,), dtype)
        return Guarded(is_counted, one, literal(0.0, dtype))

    def loss(at: Coordinates) -> Scalar:
        is_counted, label = choice(at)
        chosen = call.read(self, (*at[:channel], label, *at[channel:]), dtype)
        if weight is not None:
            chosen = apply("mul", chosen, call.read(weight, (label,), dtype))
        return Guarded(is_counted, apply("neg", chosen), literal(0.0, dtype))

    return scale, loss, dtype


@rule("nll_loss_forward", "nll_loss2d_forward", exact=False)
def lower_nll_loss(
    call: OperatorCall,
    self: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
) -> Lowered:
    """(loss, total weight)."""
    shape = call.shape_of(target)
    if not shape and len(call.shape_of(self)) != 1:
        return None
    scale, loss, dtype = _nll_parts(call, self, target, weight, ignore_index)
    dims = tuple(range(len(shape)))
    if reduction == NONE:
        call.result(0, loss)
        call.result(1, lambda at: literal(0.0, dtype))
        return DONE
    total = call.temporary(dtype, (), fold("sum", scale, shape, dims, False))
    summed = fold("sum", loss, shape, dims, False)

    def body(at: Coordinates) -> Scalar:
        return divide(summed(at), call.read(total, ())) if reduction == MEAN else summed(at)

    call.result(0, body)
    if call.is_used(1):
        call.result(1, lambda at: call.read(total, ()))
    return DONE


@rule("nll_loss_backward", "nll_loss2d_backward", exact=False)
def lower_nll_loss_backward(
    call: OperatorCall,
    grad_output: Value,
    self: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total_weight: Value,
) -> Lowered:
    """-weight at the target's place, times the incoming gradient, divided for a mean."""
    shape = call.shape_of(self)
    channel = 1 if len(shape) > 1 else 0
    dtype = call.compute_dtype

    def body(at: Coordinates) -> Scalar:
        lead = (*at[:channel], *at[channel + 1 :])
        place = lead if call.shape_of(target) else ()
        label = call.read(target, place, torch.int64)
        here = apply("eq", label, as_scalar(at[channel]))
        is_counted = apply("and", here, apply("ne", label, ignore_index))
        gradient = call.read(grad_output, place if reduction == NONE else (), dtype)
        if weight is not None:
            gradient = apply("mul", gradient, call.read(weight, (at[channel],), dtype))
        if reduction == MEAN:
            gradient = divide(gradient, call.read(total_weight, (), dtype))
        return where(is_counted, apply("neg", gradient), 0.0)

    return body
