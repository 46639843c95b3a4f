"""Result types where a CPU kernel differs from its meta kernel.

A correction takes the meta kernel's result and the operator's arguments, and gives the result
with the types that the CPU's kernel gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from braze.compat.torch.aten import aten
from braze.ir.types import TensorType
from braze.tracing.errors import Untraceable
from braze.tracing.shape_rules.strides import (
    Operand,
    as_rows,
    channels_last_stride,
    contiguous,
    contiguous_stride,
    is_contiguous,
    rows_last_stride,
    suggested_stride,
    suggests_channels_last,
    tensor_type,
)


def correct(op: torch._ops.OpOverload, result: object, args: tuple[object, ...]) -> object:
    """The result of `op` on the CPU, given what its meta kernel says."""
    correction = _CORRECTIONS.get(op)
    if correction is None:
        return result
    made = result if isinstance(result, tuple) else (result,)
    if next(each for each in made if each is not None).device.type != "cpu":
        return result
    return correction(result, args)


# --- private ---------------------------------------------------------------------------------


def _column_major(position: int) -> Callable[[Any, Any], Any]:
    """The matrices of one of the results lie column by column, as LAPACK makes them."""

    def correction(result: tuple[Operand, ...], args: tuple[object, ...]) -> tuple[object, ...]:
        made = result[position]
        *batch, rows, columns = made.shape
        *steps, column, row = contiguous_stride((*batch, columns, rows))
        moved = tensor_type(made.dtype, made.shape, (*steps, row, column), made.device)
        return (*result[:position], moved, *result[position + 1 :])

    return correction


def _statistics(result: tuple[Operand, ...], args: tuple[Any, ...]) -> Any:
    """Statistics of half-precision input are float32 only beside float32 parameters."""
    image = args[0]
    if image.dtype not in (torch.bfloat16, torch.float16):
        return result
    others = [a.dtype for a in args[1:] if isinstance(a, TensorType)]
    dtype = torch.float32 if torch.float32 in others else image.dtype
    rest = [
        tensor_type(dtype, r.shape, r.stride, r.device) if r.dtype.is_floating_point else r
        for r in result[1:]
    ]
    return (result[0], *rest)


def _no_statistics(result: tuple[Operand, ...], args: tuple[object, ...]) -> Any:
    """Evaluation saves no statistics."""
    image, mean, deviation = _normalized(_statistics(result, args), args)
    return image, *(contiguous(s.dtype, (0,), s.device) for s in (mean, deviation))


def _like(position: int) -> Callable[[Any, Any], Any]:
    """Channels last where that argument is."""

    def correction(result: Operand, args: tuple[Any, ...]) -> Operand | TensorType:
        if not suggests_channels_last(args[position].shape, args[position].stride):
            return result
        return _channels_last(result)

    return correction


def _suggested(result: Operand, args: tuple[Any, ...]) -> TensorType:
    """In the format that the image suggests, also where the operator moves nothing."""
    stride = suggested_stride(args[0].shape, args[0].stride)
    return tensor_type(result.dtype, result.shape, stride, result.device)


def _channels_last(made: Operand) -> TensorType:
    return tensor_type(made.dtype, made.shape, channels_last_stride(made.shape), made.device)


def _convolved(result: Operand, args: tuple[Any, ...]) -> Operand | TensorType:
    """Channels last where the image or the weights are; volumes only where oneDNN takes them, and
    rows only where the weights are: the kernel makes images of one row of contiguous rows."""
    if len(result.shape) == 5 and result.dtype is not torch.float32:
        return result
    if len(result.shape) == 3:
        is_last = suggests_channels_last(*as_rows(args[1].shape, args[1].stride))
        stride = rows_last_stride(result.shape)
        return tensor_type(result.dtype, result.shape, stride, result.device) if is_last else result
    if not any(suggests_channels_last(arg.shape, arg.stride) for arg in args[:2]):
        return result
    return _channels_last(result)


def _gradients_of_convolution(result: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[object, ...]:
    """Those of the image and of the weights lie as `_convolved` has it."""
    weights = args[2]
    if len(weights.shape) == 5 and weights.dtype is not torch.float32:
        return *(made and _row_major(made, args) for made in result[:2]), *result[2:]
    if len(weights.shape) != 3 or not suggests_channels_last(
        *as_rows(weights.shape, weights.stride)
    ):
        return result
    moved = (
        made and tensor_type(made.dtype, made.shape, rows_last_stride(made.shape), made.device)
        for made in result[:2]
    )
    return *moved, *result[2:]


def _normalized(result: tuple[Operand, ...], args: tuple[Any, ...]) -> Any:
    """In the format that the image suggests: its strides are not kept."""
    image, made = args[0], result[0]
    stride = suggested_stride(image.shape, image.stride)
    return tensor_type(made.dtype, made.shape, stride, made.device), *result[1:]


def _normalized_with_statistics(result: tuple[Operand, ...], args: tuple[object, ...]) -> Any:
    return _normalized(_statistics(result, args), args)


def _first_row_major(result: tuple[Operand, ...], args: tuple[object, ...]) -> tuple[object, ...]:
    return _row_major(result[0], args), *result[1:]


def _row_major(result: Operand, args: tuple[object, ...]) -> TensorType:
    return contiguous(result.dtype, result.shape, result.device)


def _rolled(result: Operand, args: tuple[Any, ...]) -> object:
    """Pieces behind each other, in the format of all of them; what does not move, and what moves as
    one row of elements, is a row-major copy."""
    image, shifts, dims = args[0], args[1], args[2] if len(args) > 2 else ()
    if not dims:
        return _row_major(result, args)
    moves = [shift % image.shape[dim] for shift, dim in zip(shifts, dims) if image.shape[dim]]
    if not moves or not all(moves) or not suggests_channels_last(image.shape, image.stride):
        return result
    return _channels_last(result)


def _row_major_of_complex(result: Operand, args: tuple[Any, ...]) -> object:
    return _row_major(result, args) if args[0].dtype.is_complex else result


def _transformed_last(result: Operand, args: tuple[Any, ...]) -> Operand | TensorType:
    """Batch dimensions outermost, then those transformed, in the order asked for."""
    image, dims = args[0], args[1]
    if not 1 < len(dims) <= 3 or not is_contiguous(image.shape, image.stride):
        return result
    chosen = [dim % len(image.shape) for dim in dims]
    order = [dim for dim in range(len(image.shape)) if dim not in chosen] + chosen
    steps = contiguous_stride(tuple(result.shape[dim] for dim in order))
    stride = tuple(step for _, step in sorted(zip(order, steps, strict=True)))
    return tensor_type(result.dtype, result.shape, stride, result.device)


def _gradients_of_a_layer(result: tuple[Operand, ...], args: tuple[Any, ...]) -> tuple[object, ...]:
    """oneDNN's backward makes the gradient of a bias also where there is none: C++ passes the
    weights once more in its place, whose shapes the meta kernel takes before PyTorch 2.13."""
    weights = args[1]
    bias = contiguous(weights.dtype, weights.shape[:1], weights.device)
    return (*result[:3], bias, bias, *result[5:])


def _of_columns(result: Operand, args: tuple[Any, ...]) -> Operand:
    """A product with no columns: the kernel only scales the bias, and gives it as it lies."""
    bias, matrix = args[0], args[1]
    if matrix.shape[1] == 0 and 0 not in result.shape and bias.shape != result.shape:
        raise Untraceable("addmv of a matrix without columns, which does not expand its bias")
    return result


def _bags(is_forward_only: bool) -> Callable[[Any, Any], Any]:
    """What the backward reads beside the sums, means or largest of bags."""

    def correction(result: tuple[Operand, ...], args: tuple[object, ...]) -> tuple[object, ...]:
        given: list[Any] = [*args, *_OF_BAGS[len(args) :]]
        weight, words, starts, _, mode, _, weights, _, padding = given
        output, device = result[0], result[0].device
        count = (output.shape[0],)
        steps = {weight.stride[1], 1 if weights is None else weights.stride[0]}
        is_fast = mode == 0 and padding < 0 and weight.dtype in _SUMMED_FAST and steps == {1}
        sizes = starts.shape if is_forward_only and mode == 0 else count
        shapes = ((0,) if is_fast else words.shape, sizes, output.shape if mode == 2 else sizes)
        return (output, *[contiguous(words.dtype, shape, device) for shape in shapes])

    return correction


_OF_BAGS = (None, None, None, False, 0, False, None, False, -1)
_SUMMED_FAST = (torch.float32, torch.float16, torch.bfloat16)


def _row_major_or_none(
    result: tuple[Operand, ...], args: tuple[object, ...]
) -> tuple[object, Operand | None]:
    """Probabilities that are not asked for are undefined; the meta kernel gives an empty tensor."""
    made, weights = result
    return _row_major(made, args), None if weights.shape == (0,) else weights


_CORRECTIONS: dict[Any, Callable[[Any, Any], Any]] = {
    aten._embedding_bag.default: _bags(False),
    aten._embedding_bag_forward_only.default: _bags(True),
    aten._linalg_svd.default: _column_major(2),
    aten.linalg_eig.default: _column_major(1),
    aten.convolution.default: _convolved,
    aten.convolution_backward.default: _gradients_of_convolution,
    aten.log_sigmoid_forward.default: _first_row_major,
    aten.nll_loss2d_forward.default: _first_row_major,
    aten.rrelu_with_noise.default: _row_major,
    aten.native_batch_norm.default: _normalized,
    aten.native_layer_norm.default: _statistics,
    aten.native_group_norm.default: _statistics,
    aten._native_batch_norm_legit.default: _normalized_with_statistics,
    aten._native_batch_norm_legit.no_stats: _normalized_with_statistics,
    aten._native_batch_norm_legit_functional.default: _normalized_with_statistics,
    aten._native_batch_norm_legit_no_training.default: _no_statistics,
    aten.max_unpool2d.default: _like(0),
    aten.pixel_shuffle.default: _like(0),
    aten.pixel_unshuffle.default: _like(0),
    aten.channel_shuffle.default: _suggested,
    aten.replication_pad2d.default: _like(0),
    aten.replication_pad3d.default: _like(0),
    aten.reflection_pad2d.default: _like(0),
    aten.reflection_pad3d.default: _like(0),
    aten.replication_pad2d_backward.default: _like(1),
    aten.replication_pad3d_backward.default: _like(1),
    aten.reflection_pad2d_backward.default: _like(1),
    aten.reflection_pad3d_backward.default: _like(1),
    aten.normal.Tensor_float: _row_major,
    aten.normal.float_Tensor: _row_major,
    aten.normal.Tensor_Tensor: _row_major,
    aten.poisson.default: _row_major,
    aten._standard_gamma.default: _row_major,
    aten.isin.Tensor_Tensor: _row_major,
    aten.addmv.default: _of_columns,
    aten.mkldnn_rnn_layer_backward.default: _gradients_of_a_layer,
    aten.nonzero_static.default: _row_major,
    aten.roll.default: _rolled,
    aten.angle.default: _row_major_of_complex,
    aten._transformer_encoder_layer_fwd.default: _row_major,
    aten._native_multi_head_attention.default: _row_major_or_none,
    aten._fft_r2c.default: _transformed_last,
    aten._batch_norm_with_update.default: _normalized_with_statistics,
    aten._batch_norm_with_update_functional.default: _normalized_with_statistics,
}
