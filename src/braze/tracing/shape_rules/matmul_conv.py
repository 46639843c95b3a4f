"""Matrix products, convolutions, normalisation, attention on CPU, pooling."""

from __future__ import annotations

from typing import Any

import torch

from braze.compat.torch.aten import aten
from braze.ir.types import TensorType
from braze.shapes.demands import must_be_positive, must_equal
from braze.shapes.symbolic import plain_size, symbolic_minimum
from braze.tracing.shape_rules.pointwise_strides import Shape
from braze.tracing.shape_rules.registry import rule
from braze.tracing.shape_rules.strides import (
    Operand,
    as_rows,
    channels_last_stride,
    contiguous,
    contiguous_stride,
    is_contiguous,
    is_same,
    preserved_stride,
    rows_last_stride,
    same_layout,
    suggested_stride,
    suggests_channels_last,
    tensor_type,
)
from braze.tracing.shape_rules.type_promotion import common_device


def _same_dtype(*operands: Operand) -> None:
    first = operands[0].dtype
    for other in operands:
        if other.dtype is not first:
            raise RuntimeError(
                f"expected m1 and m2 to have the same dtype, but got: {first} != {other.dtype}"
            )


def _check_broadcast(x: Operand, result: TensorType) -> None:
    """Raise RuntimeError where eager cannot expand `x` to the result."""
    rank = len(result.shape)
    wanted = result.shape[rank - len(x.shape) :]
    fits = len(x.shape) <= rank and all(s == 1 or must_equal(s, w) for s, w in zip(x.shape, wanted))
    if not fits:
        raise RuntimeError(
            f"The expanded size of the tensor must match: {list(x.shape)} to {list(result.shape)}"
        )


def _is_absent_or(parameter: Operand | None, shape: tuple[int, ...]) -> bool:
    return parameter is None or is_same(parameter.shape, tuple(shape))


@rule(aten.mm.default)
def _mm(a: Operand, b: Operand) -> TensorType:
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise RuntimeError("self and mat2 must be matrices")
    if not must_equal(a.shape[1], b.shape[0]):
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({a.shape[0]}x{a.shape[1]} and "
            f"{b.shape[0]}x{b.shape[1]})"
        )
    _same_dtype(a, b)
    return contiguous(a.dtype, (a.shape[0], b.shape[1]), common_device((a, b)))


@rule(aten.addmm.default)
def _addmm(
    bias: Operand, a: Operand, b: Operand, *, beta: object = 1, alpha: object = 1
) -> TensorType:
    result = _mm(a, b)
    _same_dtype(bias, a)
    common_device((bias, a))
    _check_broadcast(bias, result)
    return result


@rule(aten.bmm.default)
def _bmm(a: Operand, b: Operand) -> TensorType:
    if len(a.shape) != 3 or len(b.shape) != 3:
        raise RuntimeError("batch1 and batch2 must be 3D tensors")
    if not (must_equal(a.shape[0], b.shape[0]) and must_equal(a.shape[2], b.shape[1])):
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{a.shape[0]}, "
            f"{a.shape[2]}] but got: [{b.shape[0]}, {b.shape[1]}]."
        )
    _same_dtype(a, b)
    shape = (a.shape[0], a.shape[1], b.shape[2])
    return contiguous(a.dtype, shape, common_device((a, b)))


@rule(aten.baddbmm.default)
def _baddbmm(
    bias: Operand, a: Operand, b: Operand, *, beta: object = 1, alpha: object = 1
) -> TensorType:
    common_device((bias, a))
    result = _bmm(a, b)
    _check_broadcast(bias, result)
    return result


@rule(aten.mv.default)
def _mv(a: Operand, x: Operand) -> object:
    if len(a.shape) != 2 or len(x.shape) != 1 or a.shape[1] != x.shape[0] or a.dtype != x.dtype:
        return NotImplemented
    return contiguous(a.dtype, (a.shape[0],), common_device((a, x)))


@rule(aten.dot.default)
def _dot(a: Operand, b: Operand) -> object:
    if len(a.shape) != 1 or a.shape != b.shape or a.dtype != b.dtype:
        return NotImplemented
    return contiguous(a.dtype, (), common_device((a, b)))


@rule(aten.convolution.default)
def _convolution(
    x: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    transposed: bool,
    output_padding: Shape,
    groups: int,
) -> object:
    rank = len(x.shape) - 2
    fits = len(weight.shape) == len(x.shape) and rank in (1, 2, 3) and 0 not in x.shape
    if transposed or not fits or x.device.type not in ("cpu", "cuda") or rank == 3:
        return NotImplemented
    if x.shape[1] != weight.shape[1] * groups or x.dtype != weight.dtype:
        return NotImplemented
    if not _is_absent_or(bias, weight.shape[:1]) or weight.shape[0] % groups:
        return NotImplemented
    sizes = []
    for dim in range(rank):
        step, pad, spread = (p[dim if len(p) > 1 else 0] for p in (stride, padding, dilation))
        reach = spread * (weight.shape[dim + 2] - 1) + 1
        around = 2 * pad - reach
        size = x.shape[dim + 2]
        if step == 1:
            size = size + (around + 1) if around != -1 else size
        else:
            size = (size + (around + step)) // step
        if not must_be_positive(size):
            return NotImplemented
        sizes.append(size)
    shape: Shape = (x.shape[0], weight.shape[0], *sizes)
    common_device((x, weight, bias))
    if rank == 1 and suggests_channels_last(*as_rows(weight.shape, weight.stride)):
        return tensor_type(x.dtype, shape, rows_last_stride(shape), x.device)
    if _convolves_channels_last(x) or _convolves_channels_last(weight):
        return tensor_type(x.dtype, shape, channels_last_stride(shape), x.device)
    return contiguous(x.dtype, shape, x.device)


def _convolves_channels_last(x: Operand) -> bool:
    return suggests_channels_last(x.shape, x.stride)


@rule(aten.native_layer_norm.default)
def _layer_norm(
    x: Operand, normalized: Shape, weight: Operand | None, bias: Operand | None, epsilon: float
) -> object:
    lead = len(x.shape) - len(normalized)
    if x.dtype not in (torch.float32, torch.float64) or lead < 0:
        return NotImplemented
    if x.shape[lead:] != tuple(normalized):
        return NotImplemented
    if not all(_is_absent_or(parameter, normalized) for parameter in (weight, bias)):
        return NotImplemented
    statistics = contiguous(x.dtype, (*x.shape[:lead], *[1] * len(normalized)), x.device)
    return contiguous(x.dtype, x.shape, x.device), statistics, statistics


@rule(aten.native_group_norm.default)
def _group_norm(
    x: Operand,
    weight: Operand | None,
    bias: Operand | None,
    batch: int,
    channels: int,
    spatial: int,
    groups: int,
    epsilon: float,
) -> object:
    if x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    steps = suggested_stride(x.shape, x.stride)
    usual = is_contiguous(x.shape, x.stride)
    if not usual and x.device.type == "cpu":
        usual = same_layout(x.shape, x.stride, steps)
    if not usual:
        return NotImplemented
    if not all(_is_absent_or(parameter, (channels,)) for parameter in (weight, bias)):
        return NotImplemented
    statistics = contiguous(x.dtype, (batch, groups), x.device)
    made = tensor_type(x.dtype, x.shape, steps, x.device)
    return made, statistics, statistics


@rule(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_eval(
    x: Operand,
    weight: Operand | None,
    bias: object,
    mean: object,
    variance: object,
    momentum: object,
    epsilon: object,
) -> object:
    if not _plain_batch_norm(x, weight, bias, mean, variance):
        return NotImplemented
    empty = contiguous(x.dtype, (0,), x.device)
    return _like_image(x), empty, empty


@rule(aten._native_batch_norm_legit_functional.default)
def _batch_norm_train(
    x: Operand,
    weight: Operand | None,
    bias: object,
    mean: Operand,
    variance: Operand,
    training: bool,
    momentum: object,
    epsilon: object,
) -> object:
    if not training or 0 in x.shape or not _plain_batch_norm(x, weight, bias, mean, variance):
        return NotImplemented
    statistics = contiguous(x.dtype, (x.shape[1],), x.device)
    return _like_image(x), statistics, statistics, mean, variance


def _plain_batch_norm(x: Operand, weight: Operand | None, *others: Any) -> bool:
    if not all(_is_absent_or(parameter, x.shape[1:2]) for parameter in (weight, *others)):
        return False
    usual = x.dtype in (torch.float32, torch.float64) and x.device.type == "cpu"
    dense = is_contiguous(x.shape, x.stride) or (
        len(x.shape) == 4 and x.stride == channels_last_stride(x.shape)
    )
    return usual and dense and (weight is None or weight.dtype is x.dtype)


def _like_image(x: Operand) -> TensorType:
    if is_contiguous(x.shape, x.stride):
        return contiguous(x.dtype, x.shape, x.device)
    return tensor_type(x.dtype, x.shape, suggested_stride(x.shape, x.stride), x.device)


@rule(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _flash_attention(
    query: Operand, key: Operand, value: Operand, *rest: object, **options: object
) -> object:
    if query.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    batch, heads, length, width = query.shape
    if value.shape[-1] != width or not is_same(key.shape, value.shape):
        return NotImplemented
    if not is_same(key.shape[:2], query.shape[:2]):
        return NotImplemented
    steps = preserved_stride(query.shape, query.stride)
    out = tensor_type(query.dtype, query.shape, steps, query.device)
    sums = contiguous(query.dtype, (batch, length, heads), query.device)
    return out, tensor_type(
        sums.dtype,
        (batch, heads, length),
        (sums.stride[0], sums.stride[2], sums.stride[1]),
        query.device,
    )


@rule(aten._scaled_dot_product_efficient_attention.default)
def _efficient_attention(
    query: Operand,
    key: Operand,
    value: Operand,
    bias: Operand | None,
    computes_sums: bool,
    *rest: object,
    **options: object,
) -> tuple[TensorType, TensorType, TensorType, TensorType]:
    """Sums are padded to whole warps, which no probing at a few near sizes finds out."""
    batch, heads, length, _ = query.shape
    out = contiguous(query.dtype, (batch, length, heads, value.shape[-1]), query.device)
    shape, stride = (list(sizes) for sizes in (out.shape, out.stride))
    for sizes in (shape, stride):
        sizes[1], sizes[2] = sizes[2], sizes[1]
    padded = (length + _WARP - 1) // _WARP * _WARP if computes_sums else 0
    number = contiguous(torch.int64, (), query.device)
    return (
        tensor_type(query.dtype, tuple(shape), tuple(stride), query.device),
        contiguous(torch.float32, (batch, heads, padded), query.device),
        number,
        number,
    )


_WARP = 32


@rule(aten.native_dropout.default)
def _dropout(x: Operand, p: float, train: bool | None) -> object:
    if not is_contiguous(x.shape, x.stride):
        return NotImplemented
    return x if not x.requires_grad else contiguous(x.dtype, x.shape, x.device), contiguous(
        torch.bool,
        x.shape,
        x.device,
    )


@rule(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def _max_pool(
    x: Operand,
    kernel: Shape,
    stride: Shape = (),
    padding: Shape = (0,),
    dilation: Shape = (1,),
    ceil_mode: bool = False,
) -> object:
    shape = _pooled(x, kernel, stride or kernel, padding, dilation, ceil_mode)
    if shape is None:
        return NotImplemented
    steps = _like_format(x, shape)
    return (
        tensor_type(x.dtype, shape, steps, x.device),
        tensor_type(torch.int64, shape, steps, x.device),
    )


@rule(aten.avg_pool2d.default, aten.avg_pool3d.default)
def _avg_pool(
    x: Operand,
    kernel: Shape,
    stride: Shape = (),
    padding: Shape = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> object:
    shape = _pooled(x, kernel, stride or kernel, padding, (1,), ceil_mode)
    if shape is None:
        return NotImplemented
    return tensor_type(x.dtype, shape, _like_format(x, shape), x.device)


def _pooled(
    x: Operand, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape, ceil_mode: bool
) -> Shape | None:
    """The shape of a pooled image or volume; None where the rule says nothing of it."""
    rank = len(x.shape) - 2
    if rank < 2 or len(kernel) not in (1, rank) or 0 in x.shape:
        return None
    sizes = []
    for dim in range(rank):
        reach, step, pad, spread = (
            p[dim if len(p) > 1 else 0] for p in (kernel, stride, padding, dilation)
        )
        own: Any = x.shape[2 + dim]
        room = own + (2 * pad - spread * (reach - 1) - 1)
        size = (room + step) // step
        if ceil_mode:  # no window begins behind the input and the padding on its left
            size = plain_size(symbolic_minimum(-(-room // step), (own + pad - 1) // step)) + 1
        if size <= 0 or room < 0 or 2 * pad > reach:
            return None
        sizes.append(size)
    return (x.shape[0], x.shape[1], *sizes)


def _like_format(x: Operand, shape: Shape) -> Shape:
    if suggests_channels_last(x.shape, x.stride):
        return channels_last_stride(shape)
    return contiguous_stride(shape)


@rule(aten._adaptive_avg_pool2d.default)
def _adaptive_pool(x: Operand, size: Shape) -> object:
    if len(x.shape) != 4 or 0 in x.shape:
        return NotImplemented
    shape = (*x.shape[:2], *size)
    return tensor_type(x.dtype, shape, _like_format(x, shape), x.device)


@rule(aten.pixel_shuffle.default)
def _pixel_shuffle(x: Operand, factor: int) -> object:
    if len(x.shape) < 3 or factor <= 0 or 0 in x.shape or not _is_row_major(x):
        return NotImplemented
    *lead, channels, height, width = x.shape
    if not must_equal(channels % factor**2, 0):
        return NotImplemented
    shape = (*lead, channels // factor**2, height * factor, width * factor)
    return contiguous(x.dtype, shape, x.device)


@rule(aten.pixel_unshuffle.default)
def _pixel_unshuffle(x: Operand, factor: int) -> object:
    if len(x.shape) < 3 or factor <= 0 or 0 in x.shape or not _is_row_major(x):
        return NotImplemented
    *lead, channels, height, width = x.shape
    if not all(must_equal(size % factor, 0) for size in (height, width)):
        return NotImplemented
    shape = (*lead, channels * factor**2, height // factor, width // factor)
    return contiguous(x.dtype, shape, x.device)


def _blocks(
    sizes: tuple[int, ...],
    kernel: Shape,
    dilation: Shape,
    padding: Shape,
    stride: Shape,
) -> Any:
    """How many blocks of an image there are; None where the rule says nothing of it."""
    count: Any = 1
    for size, reach, spread, pad, step in zip(sizes, kernel, dilation, padding, stride):
        room = size + 2 * pad - spread * (reach - 1) - 1
        if step <= 0 or room < 0:
            return None
        count = count * (room // step + 1)
    return count


@rule(aten.im2col.default)
def _image_to_columns(
    x: Operand, kernel: Shape, dilation: Shape, padding: Shape, stride: Shape
) -> Any:
    if len(x.shape) != 4 or 0 in x.shape:
        return NotImplemented
    count = _blocks(x.shape[2:], kernel, dilation, padding, stride)
    if count is None:
        return NotImplemented
    shape = (x.shape[0], x.shape[1] * kernel[0] * kernel[1], count)
    return contiguous(x.dtype, shape, x.device)


@rule(aten.col2im.default)
def _columns_to_image(
    x: Operand, size: Shape, kernel: Shape, dilation: Shape, padding: Shape, stride: Shape
) -> object:
    if len(x.shape) != 3 or 0 in x.shape:
        return NotImplemented
    count = _blocks(size, kernel, dilation, padding, stride)
    window = kernel[0] * kernel[1]
    if count is None or not must_equal(x.shape[1] % window, 0) or not must_equal(count, x.shape[2]):
        return NotImplemented
    shape = (x.shape[0], x.shape[1] // window, *size)
    return contiguous(x.dtype, shape, x.device)


def _is_row_major(x: Operand) -> bool:
    """Whether what eager's kernels make of the tensor is row-major."""
    usual = x.device.type == "cpu" or is_contiguous(x.shape, x.stride)
    return usual and not suggests_channels_last(x.shape, x.stride)


@rule(aten.upsample_nearest2d.default)
def _upsample(
    x: Operand, size: Shape, scale_height: float | None = None, scale_width: object = None
) -> object:
    if len(x.shape) != 4 or 0 in x.shape:
        return NotImplemented
    shape = (*x.shape[:2], *size)
    return tensor_type(x.dtype, shape, _like_format(x, shape), x.device)
