"""Shape rules of operators that have no meta kernel: some of the CPU's, and optimizers' updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from braze.compat.torch.aten import aten
from braze.compat.torch.dispatcher import has_meta_kernel
from braze.tracing.errors import Untraceable
from braze.tracing.shape_rules.registry import rule
from braze.tracing.shape_rules.strides import (
    Operand,
    contiguous,
    contiguous_stride,
    stride_in_format,
    tensor_type,
)

if TYPE_CHECKING:
    from braze.ir.types import TensorType


@rule(aten.geqrf.default)
def _geqrf(matrix: Operand) -> tuple[TensorType, TensorType]:
    *batch, rows, columns = matrix.shape
    *steps, column, row = contiguous_stride((*batch, columns, rows))
    factors = tensor_type(matrix.dtype, matrix.shape, (*steps, row, column), matrix.device)
    scales = contiguous(matrix.dtype, (*batch, min(rows, columns)), matrix.device)
    return factors, scales


@rule(aten.histogram.bin_ct)
def _histogram(image: Operand, bins: int = 100, **options: object) -> tuple[TensorType, TensorType]:
    counts = contiguous(image.dtype, (bins,), image.device)
    return counts, contiguous(image.dtype, (bins + 1,), image.device)


@rule(aten.histogram.bins_tensor)
def _histogram_of_edges(
    image: Operand, bins: Operand, **options: object
) -> tuple[TensorType, TensorType]:
    counts = contiguous(image.dtype, (bins.shape[0] - 1,), image.device)
    return counts, contiguous(image.dtype, bins.shape, image.device)


@rule(aten._histogramdd_bin_edges.default)
def _histogram_edges(image: Operand, bins: Any, **options: object) -> tuple[object, ...]:
    return tuple(contiguous(image.dtype, (count + 1,), image.device) for count in bins)


@rule(aten._histogramdd_from_bin_cts.default)
def _histogram_of_counts(image: Operand, bins: Any, **options: object) -> TensorType:
    return contiguous(image.dtype, tuple(bins), image.device)


@rule(aten._histogramdd_from_bin_tensors.default)
def _histogram_of_tensors(image: Operand, bins: Any, **options: object) -> TensorType:
    shape = tuple(edges.shape[0] - 1 for edges in bins)
    return contiguous(image.dtype, shape, image.device)


_GAMMA = aten._standard_gamma.default


@rule(
    *(() if has_meta_kernel(_GAMMA) else (_GAMMA,)),
    aten.binomial.default,
    aten._sample_dirichlet.default,
    aten._standard_gamma_grad.default,
    aten._dirichlet_grad.default,
)
def _of_distribution(first: Operand, *others: object, **options: object) -> object:
    """Samples of distributions and their gradients; the program has expanded what they take."""
    if any(hasattr(x, "shape") and tuple(x.shape) != tuple(first.shape) for x in others):
        return NotImplemented
    return contiguous(first.dtype, first.shape, first.device)


@rule(aten.linalg_lstsq.default)
def _least_squares(
    matrix: Operand, right: Operand, rcond: float | None = None, *, driver: str | None = None
) -> object:
    """On a CPU, by the drivers that are asked for no residuals that depend on the rank."""
    device, dtype = matrix.device, matrix.dtype
    driver = driver or "gelsy"
    if device.type != "cpu" or driver not in ("gelsy", "gels") or right.dtype != dtype:
        return NotImplemented
    *batch, rows, columns = matrix.shape
    is_vector = len(right.shape) == 1 or tuple(right.shape) == tuple(matrix.shape[:-1])
    if len(matrix.shape) < 2 or len(right.shape) - (not is_vector) != len(matrix.shape) - 1:
        return NotImplemented
    *others, height = right.shape[: len(matrix.shape) - 1]
    if height != rows or tuple(others) != tuple(batch) or (driver == "gels" and rows > columns):
        return NotImplemented
    count, most = 1 if is_vector else right.shape[-1], max(rows, columns)
    *steps, _, _ = contiguous_stride((*batch, count, most))
    tail, strides = ((columns,), (1,)) if is_vector else ((columns, count), (1, most))
    solution = tensor_type(dtype, (*batch, *tail), (*steps, *strides), device)
    nothing = contiguous(dtype, (0,), device)
    rank = contiguous(torch.int64, tuple(batch) if driver == "gelsy" else (0,), device)
    real = contiguous(dtype.to_real(), (0,), device)
    return solution, nothing, rank, real


@rule(
    aten.multi_margin_loss_backward.default,
    aten.multilabel_margin_loss_backward.default,
    aten.fractional_max_pool3d_backward.default,
)
def _gradient_of_input(
    grad: Operand, self: Operand, *rest: object, **options: object
) -> TensorType:
    return contiguous(self.dtype, self.shape, self.device)


@rule(
    aten._fused_adam.default,
    aten._fused_adam.tensor_lr,
    aten._fused_adamw.default,
    aten._fused_adamw.tensor_lr,
)
def _adam(*lists: Any, **options: object) -> tuple[object, ...]:
    *updated, _steps = lists
    return tuple(map(tuple, updated))


@rule(
    aten._fused_sgd.default,
    aten._fused_sgd.tensor_lr,
    aten._fused_adagrad.default,
    aten._fused_adagrad.tensor_lr,
)
def _updated(*lists: Any, **options: object) -> tuple[object, ...]:
    return tuple(map(tuple, lists))


# --- fake quantization ---------------------------------------------------------------------------


@rule(aten.fake_quantize_per_tensor_affine_cachemask.default)
def _fake_quantize(x: Operand, scale: object, zero_point: Any, low: int, high: int) -> object:
    return _quantized(x) if low <= zero_point <= high and low <= high else NotImplemented


@rule(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def _fake_quantize_by_tensors(
    x: Operand, scale: Operand, zero_point: Operand, enabled: Operand, low: int, high: int
) -> object:
    return _quantized(x) if low <= high else NotImplemented


@rule(aten.fake_quantize_per_channel_affine_cachemask.default)
def _fake_quantize_channels(
    x: Operand, scale: Operand, zero_point: Operand, axis: int, low: int, high: int
) -> object:
    """Where the kernel takes what it gets; where it refuses it, the program gets its error."""
    fits = (
        0 <= axis < len(x.shape)
        and tuple(scale.shape) == tuple(zero_point.shape) == (x.shape[axis],)
        and scale.dtype is torch.float32
        and zero_point.dtype in (torch.int32, torch.float32, torch.float16)
    )
    return _quantized(x) if fits and low <= high else NotImplemented


@rule(
    aten._fused_moving_avg_obs_fq_helper.default,
    aten._fused_moving_avg_obs_fq_helper_functional.default,
)
def _fake_quantize_observed(x: Operand, on: Operand, quantizes: Operand, *given: Any) -> object:
    """As the meta kernel says, which passes over an observer's first call by rows: that resizes
    what it is given."""
    state, (axis, by_row, *_) = given[:4], (*given[7:], False)
    wanted = (x.shape[axis],) if by_row else ()
    if any(tuple(kind.shape) not in (wanted, wanted or (1,)) for kind in state):
        raise Untraceable("the first fake quantization by rows, which resizes its observer's state")
    return NotImplemented


def _quantized(x: Operand) -> object:
    """The rounded values, and which of them were in range, in the layout of the input."""
    if x.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        return NotImplemented
    stride = stride_in_format(x.shape, x.stride, None)
    if stride is None:
        return NotImplemented
    return tuple(tensor_type(dtype, x.shape, stride, x.device) for dtype in (x.dtype, torch.bool))
