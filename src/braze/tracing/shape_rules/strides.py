"""Layout helpers of shape rules: contiguous strides, memory formats, tensor types."""

from __future__ import annotations

import functools
import math
from typing import Protocol, cast

import torch

from braze.ir.types import TensorType
from braze.shapes.conditions import are_strides_in_order, at_least_one, size_at_hand
from braze.shapes.demands import must_equal
from braze.tracing.shape_rules.pointwise_strides import Shape, iteration_order


class Operand(Protocol):
    """A `TensorType` as shape rules compute with it. Among its sizes are symbolic ones, which have
    the arithmetic of ints: to the rules each is an int."""

    @property
    def dtype(self) -> torch.dtype:
        """The element type."""

    @property
    def shape(self) -> Shape:
        """The sizes."""

    @property
    def stride(self) -> Shape:
        """The strides, in elements."""

    @property
    def device(self) -> torch.device:
        """Where the tensor is."""

    @property
    def requires_grad(self) -> bool:
        """Whether its gradient is asked for."""


def as_operand(kind: TensorType) -> Operand:
    """The type of a fake tensor as shape rules and PyTorch compute with it: graphs say that sizes
    are expressions, but until a trace ends they are SymInts."""
    return cast(Operand, kind)


@functools.lru_cache(maxsize=1 << 16)
def tensor_type(
    dtype: torch.dtype, shape: Shape, stride: Shape, device: torch.device
) -> TensorType:
    """The one TensorType object with this metadata: equal types are mostly identical."""
    return TensorType(dtype, shape, stride, device)


@functools.lru_cache(maxsize=1 << 14)
def contiguous_stride(shape: Shape) -> Shape:
    """Row-major strides."""
    stride = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= at_least_one(size)
    return tuple(reversed(stride))


@functools.lru_cache(maxsize=1 << 14)
def is_dense(shape: Shape, stride: Shape) -> bool:
    """Whether the elements fill their memory without gaps or overlap."""
    if 0 in shape:
        return True
    expected = 1
    steps = [(step, size) for size, step in zip(shape, stride) if size != 1]
    for step, size in sorted(steps, key=lambda pair: pair[0]):  # sizes are asked nothing
        if step != expected:
            return False
        expected *= size
    return True


@functools.lru_cache(maxsize=1 << 14)
def overlaps_itself(shape: Shape, stride: Shape) -> bool:
    """Whether eager takes several elements for one memory location, as `expand` makes them: it
    refuses most writes to them."""
    return any(
        type(step) is int and step == 0 and not (type(size) is int and size == 1)
        for size, step in zip(shape, stride)
    ) and not (0 in shape or is_dense(shape, stride))


def shares_elements(shape: Shape, stride: Shape) -> bool:
    """Whether several elements have one memory location, as windows of `unfold` make them, which
    eager does not look for. Of symbolic sizes what cannot be proved is asked."""
    if is_row_major(shape, stride):
        return False
    if all(type(number) is int for number in (*shape, *stride)):
        return _shares_elements(shape, stride)
    return _overlaps_in_order(shape, stride)


@functools.lru_cache(maxsize=1 << 14)
def _shares_elements(shape: Shape, stride: Shape) -> bool:
    """The same of plain numbers: exact up to `_COUNTED` elements."""
    if 0 in shape or not _overlaps_in_order(shape, stride):
        return False
    if math.prod(shape) > _COUNTED:
        return True
    offsets = [0]
    for size, step in zip(shape, stride):
        offsets = [offset + n * step for offset in offsets for n in range(size)]
    return len(set(offsets)) < len(offsets)


_COUNTED = 1 << 14


def _overlaps_in_order(shape: Shape, stride: Shape) -> bool:
    """Whether a dimension steps over less than what the dimensions of smaller steps take."""
    extent = 1
    steps = [(step, size) for size, step in zip(shape, stride) if size != 1]
    for step, size in sorted(steps, key=lambda pair: size_at_hand(pair[0])):
        if step < extent:
            return True
        extent += (size - 1) * step
    return False


@functools.lru_cache(maxsize=1 << 14)
def same_layout(shape: Shape, stride: Shape, other: Shape) -> bool:
    """Whether two strides address the same elements (dimensions of size 1 do not matter)."""
    return all(a == b or size == 1 for size, a, b in zip(shape, stride, other)) or 0 in shape


def is_same(shape: Shape, other: Shape) -> bool:
    """Whether two shapes are equal; sizes of other ranks are not compared: with symbols each
    comparison may become a guard."""
    return len(shape) == len(other) and shape == other


@functools.lru_cache(maxsize=1 << 14)
def memory_order(shape: Shape, stride: Shape) -> Shape:
    """The dimensions from the largest stride to the smallest."""
    return tuple(sorted(range(len(shape)), key=lambda d: (-stride[d], -shape[d], d)))


def contiguous(dtype: torch.dtype, shape: Shape, device: torch.device) -> TensorType:
    """A row-major tensor."""
    return tensor_type(dtype, shape, contiguous_stride(shape), device)


@functools.lru_cache(maxsize=1 << 14)
def is_contiguous(shape: Shape, stride: Shape) -> bool:
    """Whether the strides are row-major; dimensions of size 1 do not matter."""
    return 0 in shape or same_layout(shape, stride, contiguous_stride(shape))


def is_row_major(shape: Shape, stride: Shape) -> bool:
    """Whether the strides are written as row-major ones. Asks nothing of sizes."""
    for step, expected in zip(stride, contiguous_stride(shape)):
        if step is not expected and not (type(step) is type(expected) is int and step == expected):
            return False
    return True


@functools.lru_cache(maxsize=1 << 14)
def channels_last_stride(shape: Shape) -> Shape:
    """Strides with the channels (dimension 1) innermost, of a 4- or 5-dimensional tensor."""
    return stride_in_order(shape, (0, *range(2, len(shape)), 1))


def stride_in_order(shape: Shape, order: Shape) -> Shape:
    """Dense strides with `order` from the slowest dimension to the fastest."""
    stride = [0] * len(shape)
    step = 1
    for dim in reversed(order):
        stride[dim] = step
        step *= at_least_one(shape[dim])
    return tuple(stride)


@functools.lru_cache(maxsize=1 << 14)
def suggests_channels_last(shape: Shape, stride: Shape) -> bool:
    """Whether eager takes the strides for channels-last when it picks a format."""
    if len(shape) not in (4, 5) or stride[1] == 0:
        return False
    return are_strides_in_order(shape, stride, (1, *range(len(shape) - 1, 1, -1), 0))


def as_rows(shape: Shape, stride: Shape) -> tuple[Shape, Shape]:
    """Shape and strides of `x.unsqueeze(2)`: an image of one row for each row of `x`."""
    batch, channels, length = shape
    first, second, last = stride
    return (batch, channels, 1, length), (first, second, length * last, last)


def rows_last_stride(shape: Shape) -> Shape:
    """Strides of rows that are images of one row, channels last."""
    _, channels, length = shape
    return (channels * length, 1, channels)


@functools.lru_cache(maxsize=1 << 14)
def suggested_stride(shape: Shape, stride: Shape) -> Shape:
    """Strides of `torch.empty(shape, memory_format=suggested)`."""
    if suggests_channels_last(shape, stride):
        return channels_last_stride(shape)
    return contiguous_stride(shape)


@functools.lru_cache(maxsize=1 << 14)
def preserved_stride(shape: Shape, stride: Shape) -> Shape:
    """Strides of `torch.empty_like`: the same where they are dense, else dense in their order."""
    if is_dense(shape, stride):
        return stride
    order = iteration_order(shape, ((shape, stride),))
    result = [0] * len(shape)
    step = 1
    for dim in order:
        result[dim] = step
        if shape[dim] > 1:
            step *= shape[dim]
    return tuple(result)


def stride_in_format(
    shape: Shape, stride: Shape, memory_format: torch.memory_format | None
) -> Shape | None:
    """Strides of a copy in a memory format; None means preserve. None for an unknown format."""
    if memory_format is None or memory_format is torch.preserve_format:
        return preserved_stride(shape, stride)
    if memory_format is torch.contiguous_format:
        return contiguous_stride(shape)
    ranks = {torch.channels_last: 4, torch.channels_last_3d: 5}
    if ranks.get(memory_format) == len(shape):
        return channels_last_stride(shape)
    return None


def broadcast_shape(shapes: tuple[Shape, ...]) -> Shape:
    """The common shape; raises RuntimeError as eager where there is none."""
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for dim, size in enumerate(shape, rank - len(shape)):
            if size == 1 or result[dim] is size:
                continue
            if result[dim] != 1:
                if must_equal(result[dim], size):
                    continue
                raise RuntimeError(
                    f"The size of tensor a ({result[dim]}) must match the size of tensor b "
                    f"({size}) at non-singleton dimension {dim}"
                )
            result[dim] = size
    return tuple(result)


@functools.lru_cache(maxsize=1 << 14)
def pointwise_layout(*operands: tuple[Shape, Shape]) -> tuple[Shape, Shape]:
    """The result's (shape, stride) in eager's pointwise kernels; so are the operands given."""
    first = operands[0][0]
    if all(shape is first or is_same(shape, first) for shape, _ in operands):
        fast = _uniform_layout(first, operands)
        if fast is not None:
            return first, fast
        shape = first
    else:
        shape = broadcast_shape(tuple(shape for shape, _ in operands))
    if all(_is_plainly_row_major(*operand) for operand in operands):
        return shape, contiguous_stride(shape)
    return shape, ordered_stride(shape, operands)


def _is_plainly_row_major(shape: Shape, stride: Shape) -> bool:
    """Whether the strides are those of `contiguous_stride`, sizes of one included; nothing is asked
    of symbolic sizes."""
    return all(
        a is b or (type(a) is type(b) is int and a == b)
        for a, b in zip(stride, contiguous_stride(shape), strict=True)
    )


def ordered_stride(shape: Shape, operands: tuple[tuple[Shape, Shape], ...]) -> Shape:
    """Dense strides in the order in which eager's pointwise kernels visit the operands."""
    order = iteration_order(shape, operands)
    rank = len(shape)
    if order == list(range(rank - 1, -1, -1)):
        return contiguous_stride(shape)
    stride = [0] * rank
    step = 1
    for dim in order:
        stride[dim] = step
        step *= shape[dim]
    return tuple(stride)


def _uniform_layout(shape: Shape, operands: tuple[tuple[Shape, Shape], ...]) -> Shape | None:
    if all(is_contiguous(shape, stride) for _, stride in operands):
        return contiguous_stride(shape)
    if len(shape) == 4:
        wanted = channels_last_stride(shape)
        if all(same_layout(shape, stride, wanted) for _, stride in operands):
            return wanted
    stride = operands[0][1]
    if is_dense(shape, stride) and all(other == stride for _, other in operands):
        return stride
    return None
