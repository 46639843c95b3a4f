"""Losses, random fills, and the backward operators of what models are made of."""

from __future__ import annotations

from typing import Any

import torch

from braze.compat.torch.aten import aten
from braze.ir.types import TensorType
from braze.tracing.shape_rules.meta_fallback import explicit_device
from braze.tracing.shape_rules.pointwise import pointwise
from braze.tracing.shape_rules.pointwise_strides import Shape
from braze.tracing.shape_rules.registry import rule
from braze.tracing.shape_rules.strides import (
    Operand,
    contiguous,
    is_contiguous,
    preserved_stride,
    stride_in_order,
    suggested_stride,
    tensor_type,
)
from braze.tracing.shape_rules.type_promotion import common_device, promoted
from braze.tracing.shape_rules.views import wrap_dim

_WIDE = (torch.float32, torch.float64)


def _like(x: Operand) -> TensorType:
    """What `empty_like` gives."""
    return tensor_type(x.dtype, x.shape, preserved_stride(x.shape, x.stride), x.device)


def _dense(x: Operand) -> TensorType:
    return contiguous(x.dtype, x.shape, x.device)


def _image(x: Operand) -> TensorType:
    """Dense, channels-last where the operand is."""
    return tensor_type(x.dtype, x.shape, suggested_stride(x.shape, x.stride), x.device)


# --- losses -----------------------------------------------------------------------------------

_NO_REDUCTION, _MEAN, _SUM = 0, 1, 2


@rule(aten.nll_loss_forward.default)
def _nll_loss(
    x: Operand, target: Operand, weight: Operand | None, reduction: int, ignored: int
) -> object:
    rank = len(x.shape)
    if rank not in (1, 2) or len(target.shape) != rank - 1 or target.dtype is not torch.int64:
        return NotImplemented
    if rank == 2 and target.shape[0] != x.shape[0]:
        return NotImplemented
    if weight is not None and weight.shape != x.shape[-1:]:
        return NotImplemented
    scalar = contiguous(x.dtype, (), common_device((x, target)))
    if reduction == _NO_REDUCTION and rank == 2:
        return contiguous(x.dtype, (x.shape[0],), x.device), scalar
    return scalar, scalar


@rule(aten.nll_loss_backward.default)
def _nll_loss_backward(gradient: Operand, x: Operand, *rest: object) -> TensorType:
    return _dense(x)


@rule(aten.huber_loss.default)
def _huber_loss(
    x: Operand, target: Operand, reduction: int = _MEAN, *rest: object, **options: object
) -> TensorType:
    """The kernel writes to what `empty_like(x)` gave, and reduces that."""
    made = pointwise((x, target), promoted((x, target)))
    if not torch.can_cast(made.dtype, x.dtype):
        raise RuntimeError(f"result type {made.dtype} can't be cast to {x.dtype}")
    if reduction != _NO_REDUCTION:
        return contiguous(x.dtype, (), made.device)
    return _like(x) if made.shape == x.shape else made


@rule(aten.mse_loss.default, aten.smooth_l1_loss.default)
def _elementwise_loss(
    x: Operand, target: Operand, reduction: int = _MEAN, *rest: object, **options: object
) -> TensorType:
    made = pointwise((x, target), promoted((x, target)))
    return made if reduction == _NO_REDUCTION else contiguous(made.dtype, (), made.device)


@rule(aten.native_dropout_backward.default)
def _native_dropout_backward(gradient: Operand, mask: Operand, scale: float) -> object:
    if gradient.device.type != "cpu":
        return NotImplemented
    kept = pointwise((gradient, mask), promoted((gradient, mask)))
    return pointwise((kept,), promoted((kept, scale)))


# --- normalisation ----------------------------------------------------------------------------


def _masked(made: tuple[TensorType, ...], mask: Any) -> tuple[TensorType | None, ...]:
    return tuple(m if wanted else None for m, wanted in zip(made, mask))


@rule(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    gradient: Operand,
    x: Operand,
    normalized: Shape,
    mean: Operand,
    deviation: Operand,
    weight: Operand | None,
    bias: Operand | None,
    mask: object,
) -> object:
    if x.dtype not in _WIDE or not x.shape or weight is None or bias is None:
        return NotImplemented
    if not (is_contiguous(x.shape, x.stride) and is_contiguous(gradient.shape, gradient.stride)):
        return NotImplemented
    return _masked((_dense(x), _dense(weight), _dense(bias)), mask)


@rule(aten.native_batch_norm_backward.default)
def _batch_norm_backward(
    gradient: Operand,
    x: Operand,
    weight: Operand | None,
    mean: object,
    variance: object,
    saved_mean: object,
    saved_deviation: object,
    training: bool,
    epsilon: float,
    mask: Any,
) -> object:
    dense = (
        x.dtype in _WIDE and x.device.type == "cpu" and (weight is not None or not any(mask[1:]))
    )
    if not dense or x.stride != gradient.stride or not is_contiguous(x.shape, x.stride):
        return NotImplemented
    channels = contiguous(x.dtype, (x.shape[1],), x.device)
    return _masked((_dense(x), channels, channels), mask)


# --- convolution and pooling ------------------------------------------------------------------


@rule(aten.convolution_backward.default)
def _convolution_backward(
    gradient: Operand,
    x: Operand,
    weight: Operand,
    bias_shape: Shape | None,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    transposed: bool,
    output_padding: Shape,
    groups: int,
    mask: object,
) -> object:
    plain = all(is_contiguous(t.shape, t.stride) for t in (gradient, x, weight))
    if not plain or x.device.type != "cpu" or x.dtype not in _WIDE or 0 in x.shape:
        return NotImplemented
    if transposed or len(x.shape) != 4:
        return NotImplemented
    bias = contiguous(gradient.dtype, (gradient.shape[1],), x.device)
    return _masked((_dense(x), _dense(weight), bias), mask)


@rule(
    aten.max_pool2d_with_indices_backward.default,
    aten.avg_pool2d_backward.default,
    aten._adaptive_avg_pool2d_backward.default,
)
def _pool_backward(gradient: Operand, x: Operand, *rest: object) -> object:
    return _image(x) if len(x.shape) == 4 and 0 not in x.shape else NotImplemented


# --- attention, softmax, embedding --------------------------------------------------------------


@rule(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _flash_attention_backward(
    gradient: Operand,
    query: Operand,
    key: Operand,
    value: Operand,
    *rest: object,
    **o: object,
) -> object:
    if query.dtype not in _WIDE or len(query.shape) != 4:
        return NotImplemented
    return tuple(_heads_inside(x) for x in (query, key, value))


def _heads_inside(x: Operand) -> TensorType:
    """The shape [batch, heads, length, width] in memory order [batch, length, heads, width]."""
    stride = stride_in_order(x.shape, (0, 2, 1, 3))
    return tensor_type(x.dtype, x.shape, stride, x.device)


@rule(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(gradient: Operand, output: Operand, dim: int, dtype: torch.dtype) -> object:
    if gradient.dtype is not dtype or output.shape != gradient.shape:
        return NotImplemented
    return contiguous(dtype, gradient.shape, gradient.device)


@rule(aten._safe_softmax.default)
def _safe_softmax(x: Operand, dim: int, dtype: torch.dtype | None = None) -> object:
    if dtype not in (None, x.dtype) or not is_contiguous(x.shape, x.stride):
        return NotImplemented
    wrap_dim(dim, len(x.shape))
    return _dense(x)


@rule(aten.embedding_dense_backward.default)
def _embedding_backward(
    gradient: Operand, indices: Operand, count: int, padding: int, scale: bool
) -> TensorType:
    shape = (count, gradient.shape[-1])
    return contiguous(gradient.dtype, shape, gradient.device)


# --- views' backwards, random fills, relatives ----------------------------------------------------


@rule(aten.select_backward.default, aten.slice_backward.default, aten.diagonal_backward.default)
def _view_backward(gradient: Operand, shape: Shape, *where: object) -> TensorType:
    return contiguous(gradient.dtype, tuple(shape), gradient.device)


@rule(aten.bernoulli.default, aten.bernoulli.p)
def _bernoulli(x: Operand, *probability: float, generator: object = None) -> TensorType:
    return _dense(x)


@rule(
    aten.uniform.default,
    aten.normal_functional.default,
    aten.exponential.default,
)
def _random(x: Operand, *parameters: object, generator: object = None) -> TensorType:
    return _like(x)


@rule(aten.new_zeros.default, aten.new_ones.default, aten.new_empty.default, aten.new_full.default)
def _new(
    x: Operand,
    shape: Shape,
    *value: object,
    dtype: torch.dtype | None = None,
    layout: object = None,
    device: object = None,
    pin_memory: object = None,
) -> object:
    if layout not in (None, torch.strided) or any(size < 0 for size in shape):
        return NotImplemented
    where = x.device if device is None else explicit_device(device)
    return contiguous(dtype or x.dtype, tuple(shape), where)
