"""Views: shape, strides and storage offset of each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from braze.compat.torch.aten import aten
from braze.ir.types import TensorType
from braze.shapes.conditions import known_equality
from braze.shapes.demands import is_exactly, must_equal
from braze.tracing.shape_rules.pointwise_strides import Shape
from braze.tracing.shape_rules.registry import RULES, VIEW_RULES
from braze.tracing.shape_rules.strides import Operand, contiguous_stride, tensor_type
from braze.tracing.symbolic.slice_bounds import slice_range

View = tuple[TensorType, int]
_Rule = TypeVar("_Rule", bound=Callable[..., Any])


def _view_rule(op: object) -> Callable[[_Rule], _Rule]:
    """Register a view's rule, also as the plain rule of the same overload."""

    def register(function: _Rule) -> _Rule:
        if op in VIEW_RULES or op in RULES:
            raise ValueError(f"two shape rules for {op}")

        def plain(x: Operand, *args: object, **kwargs: object) -> object:
            result = function(x, 0, *args, **kwargs)
            if result is NotImplemented:
                return result
            if result and type(result[0]) is TensorType:
                return result[0]
            return tuple(made for made, _ in result)

        VIEW_RULES[op] = function
        RULES[op] = plain
        return function

    return register


def _made(x: Operand, shape: Shape, stride: Shape) -> TensorType:
    return tensor_type(x.dtype, shape, stride, x.device)


def wrap_dim(dim: int, rank: int) -> int:
    """A dimension counted from the end as counted from the start; raises IndexError as eager."""
    limit = max(rank, 1)
    if not -limit <= dim < limit:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], "
            f"but got {dim})"
        )
    return dim % limit


@functools.lru_cache(maxsize=1 << 12)
def completed_shape(shape: Shape, numel: int) -> Shape:
    """The shape with its -1 replaced; raises RuntimeError as eager where it does not fit."""
    product = 1
    for size in shape:
        if type(size) is not int or size != -1:
            product *= size
    unknown = sum([type(size) is int and size == -1 for size in shape])
    rest = 0
    if unknown:
        fits = product > 0
        rest = numel // product if fits else 0
        fits = fits and (rest * product is numel or must_equal(numel % product, 0))
    else:
        fits = must_equal(product, numel)
    if unknown > 1 or not fits or any(size < -1 for size in shape):
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {numel}")
    return tuple([rest if type(size) is int and size == -1 else size for size in shape])


class OpenQuestion(Exception):
    """Whether dimensions lie one behind the other in memory depends on sizes."""


def is_known_to_go_on(step: int, end: int, is_filled: Callable[[], bool]) -> bool:
    """Whether a dimension with this stride goes on where those after it end; OpenQuestion where
    that is not known and makes a difference."""
    is_known = known_equality(step, end)
    if is_known is None and not is_filled():
        raise OpenQuestion
    return bool(is_known)


def _goes_on(step: int, end: int, is_filled: Callable[[], bool]) -> bool:
    """The same, asking the sizes at hand. It is not asked if the new shape's last dimensions have
    as many elements as those after it: its strides are the same either way."""
    try:
        return is_known_to_go_on(step, end, is_filled)
    except OpenQuestion:
        return step == end


@functools.lru_cache(maxsize=1 << 12)
def view_stride(
    old_shape: Shape, old_stride: Shape, shape: Shape, goes_on: Callable[..., bool] = _goes_on
) -> Shape | None:
    """Strides of `view(shape)`, or None where only a copy can have the shape."""
    numel = 1
    for size in old_shape:
        numel *= size
    if numel == 0 or old_stride == contiguous_stride(old_shape):
        return old_stride if shape == old_shape else contiguous_stride(shape)
    stride = [0] * len(shape)
    view_dim = len(shape) - 1
    chunk_step = old_stride[-1] if old_stride else 1
    chunk, viewed = 1, 1
    for dim in range(len(old_shape) - 1, -1, -1):
        chunk *= old_shape[dim]
        if dim and old_shape[dim - 1] == 1:
            continue
        is_filled = functools.partial(_is_filled, shape[: view_dim + 1], viewed, chunk)
        if dim and goes_on(old_stride[dim - 1], chunk * chunk_step, is_filled):
            continue
        while view_dim >= 0 and (viewed < chunk or shape[view_dim] == 1):
            stride[view_dim] = viewed * chunk_step
            viewed *= shape[view_dim]
            view_dim -= 1
        if viewed != chunk:
            return None
        if dim > 0:
            chunk_step = old_stride[dim - 1]
            chunk, viewed = 1, 1
    if not old_shape:
        return contiguous_stride(shape)
    return tuple(stride) if view_dim == -1 else None


def _is_filled(shape: Shape, viewed: int, chunk: int) -> bool:
    """Whether the last dimensions of a shape, and `viewed`, are known to have `chunk` elements."""
    for size in (*reversed(shape), 1):
        if known_equality(viewed, chunk):
            return True
        viewed *= size
    return False


@functools.lru_cache(maxsize=1 << 12)
def numel_of(shape: Shape) -> int:
    """How many elements there are."""
    result = 1
    for size in shape:
        result *= size
    return result


@_view_rule(aten.view.default)
def _view(x: Operand, offset: int, shape: Shape) -> View:
    shape = completed_shape(tuple(shape), numel_of(x.shape))
    stride = view_stride(x.shape, x.stride, shape)
    if stride is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one "
            "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
        )
    return _made(x, shape, stride), offset


@_view_rule(aten._reshape_alias.default)
def _reshape_alias(x: Operand, offset: int, shape: Shape, stride: Shape) -> View:
    return _made(x, tuple(shape), tuple(stride)), offset


@_view_rule(aten.as_strided.default)
def _as_strided(
    x: Operand, offset: int, shape: Shape, stride: Shape, storage_offset: int | None = None
) -> View:
    return (
        _made(x, tuple(shape), tuple(stride)),
        offset if storage_offset is None else storage_offset,
    )


@_view_rule(aten.alias.default)
def _alias(x: Operand, offset: int) -> View:
    return _made(x, x.shape, x.stride), offset


@_view_rule(aten.detach.default)
def _detach(x: Operand, offset: int) -> View:
    return _made(x, x.shape, x.stride), offset


@_view_rule(aten.permute.default)
def _permute(x: Operand, offset: int, dims: Shape) -> View:
    rank = len(x.shape)
    order = [wrap_dim(d, rank) for d in dims]
    if len(order) != rank or len(set(order)) != rank:
        raise RuntimeError(f"permute(dims): {list(dims)} is no permutation of {rank} dimensions")
    shape, stride = x.shape, x.stride
    made = _made(x, tuple([shape[d] for d in order]), tuple([stride[d] for d in order]))
    return made, offset


@_view_rule(aten.transpose.int)
def _transpose(x: Operand, offset: int, first: int, second: int) -> View:
    rank = len(x.shape)
    first, second = wrap_dim(first, rank), wrap_dim(second, rank)
    shape, stride = list(x.shape), list(x.stride)
    if rank:
        shape[first], shape[second] = shape[second], shape[first]
        stride[first], stride[second] = stride[second], stride[first]
    return _made(x, tuple(shape), tuple(stride)), offset


@_view_rule(aten.t.default)
def _t(x: Operand, offset: int) -> View:
    if len(x.shape) > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {len(x.shape)}D"
        )
    return _made(x, x.shape[::-1], x.stride[::-1]), offset


@_view_rule(aten.expand.default)
def _expand(x: Operand, offset: int, shape: Shape, *, implicit: bool = False) -> View:
    lead = len(shape) - len(x.shape)
    if lead < 0:
        raise RuntimeError(
            f"expand: the number of sizes provided ({len(shape)}) must be greater or equal to the "
            f"number of dimensions in the tensor ({len(x.shape)})"
        )
    result_shape, result_stride = list(shape), [0] * len(shape)
    for dim in range(len(shape)):
        own = dim - lead
        size = shape[dim]
        if own < 0:
            if size < 0:
                raise RuntimeError(f"expand: -1 is not allowed in a leading dimension ({dim})")
            continue
        if size == -1:
            size = result_shape[dim] = x.shape[own]
        if size == x.shape[own] or (x.shape[own] != 1 and must_equal(size, x.shape[own])):
            result_stride[dim] = x.stride[own]
        elif x.shape[own] != 1:
            raise RuntimeError(
                f"The expanded size of the tensor ({size}) must match the existing size "
                f"({x.shape[own]}) at non-singleton dimension {dim}.  Target sizes: "
                f"{list(shape)}.  Tensor sizes: {list(x.shape)}"
            )
    for dim in range(lead - 1, -1, -1):  # eager strides over new dimensions of size 1 as if dense
        if shape[dim] == 1 and dim + 1 < len(shape):
            result_stride[dim] = result_shape[dim + 1] * result_stride[dim + 1]
    return _made(x, tuple(result_shape), tuple(result_stride)), offset


@_view_rule(aten.unsqueeze.default)
def _unsqueeze(x: Operand, offset: int, dim: int) -> View:
    dim = wrap_dim(dim, len(x.shape) + 1)
    step = x.shape[dim] * x.stride[dim] if dim < len(x.shape) else 1
    shape = (*x.shape[:dim], 1, *x.shape[dim:])
    return _made(x, shape, (*x.stride[:dim], step, *x.stride[dim:])), offset


def _squeezed(x: Operand, offset: int, dims: set[int]) -> View:
    kept = [d for d, size in enumerate(x.shape) if not (d in dims and is_exactly(size, 1))]
    shape = tuple(x.shape[d] for d in kept)
    return _made(x, shape, tuple(x.stride[d] for d in kept)), offset


@_view_rule(aten.squeeze.default)
def _squeeze(x: Operand, offset: int) -> View:
    return _squeezed(x, offset, set(range(len(x.shape))))


@_view_rule(aten.squeeze.dim)
def _squeeze_dim(x: Operand, offset: int, dim: int) -> View:
    return _squeezed(x, offset, {wrap_dim(dim, len(x.shape))})


@_view_rule(aten.squeeze.dims)
def _squeeze_dims(x: Operand, offset: int, dims: Shape) -> View:
    return _squeezed(x, offset, {wrap_dim(d, len(x.shape)) for d in dims})


@_view_rule(aten.select.int)
def _select(x: Operand, offset: int, dim: int, index: int) -> View:
    rank = len(x.shape)
    if not rank:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    dim = wrap_dim(dim, rank)
    size, step = x.shape[dim], x.stride[dim]
    if not -size <= index < size:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(x.shape)} "
            f"at dimension {dim}"
        )
    if index < 0:
        index += size
    shape = x.shape[:dim] + x.shape[dim + 1 :]
    stride = x.stride[:dim] + x.stride[dim + 1 :]
    return _made(x, shape, stride), offset + index * step


@_view_rule(aten.slice.Tensor)
def _slice(
    x: Operand,
    offset: int,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> View:
    if not x.shape:
        raise RuntimeError("slice() cannot be applied to a 0-dim tensor.")
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    dim = wrap_dim(dim, len(x.shape))
    size: int = x.shape[dim]
    start, end = slice_range(size, start, end)
    shape, stride = list(x.shape), list(x.stride)
    own = stride[dim]
    shape[dim] = -(-(end - start) // step)
    stride[dim] = own * step
    return _made(x, tuple(shape), tuple(stride)), offset + start * own


@_view_rule(aten.diagonal.default)
def _diagonal(x: Operand, offset: int, shift: int = 0, dim1: int = 0, dim2: int = 1) -> object:
    rank = len(x.shape)
    dim1, dim2 = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    if dim1 == dim2:
        return NotImplemented
    rows, columns = x.shape[dim1], x.shape[dim2]
    down, across = max(-shift, 0), max(shift, 0)
    length = max(min(rows - down, columns - across), 0)
    if length:
        offset += down * x.stride[dim1] + across * x.stride[dim2]
    kept = [d for d in range(rank) if d not in (dim1, dim2)]
    shape = (*(x.shape[d] for d in kept), length)
    stride = (*(x.stride[d] for d in kept), x.stride[dim1] + x.stride[dim2])
    return _made(x, shape, stride), offset


_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


@_view_rule(aten.view_as_real.default)
def _view_as_real(x: Operand, offset: int) -> object:
    """Real and imaginary parts side by side, in elements of half the size."""
    if x.dtype not in _REAL:
        return NotImplemented
    stride = (*(2 * step for step in x.stride), 1)
    return tensor_type(_REAL[x.dtype], (*x.shape, 2), stride, x.device), 2 * offset


@_view_rule(aten.view_as_complex.default)
def _view_as_complex(x: Operand, offset: int) -> object:
    """Only of pairs that lie side by side, at even places; eager says which are not."""
    dtype = _COMPLEX.get(x.dtype)
    if dtype is None or not x.shape or x.shape[-1] != 2 or x.stride[-1] != 1:
        return NotImplemented
    if not all(must_equal(number % 2, 0) for number in (*x.stride[:-1], offset)):
        return NotImplemented
    stride = tuple(step // 2 for step in x.stride[:-1])
    return tensor_type(dtype, x.shape[:-1], stride, x.device), offset // 2


_COMPLEX = {real: number for number, real in _REAL.items()}


@_view_rule(aten.unbind.int)
def _unbind(x: Operand, offset: int, dim: int = 0) -> tuple[View, ...]:
    dim = wrap_dim(dim, len(x.shape))
    return tuple(_select(x, offset, dim, index) for index in range(x.shape[dim]))


@_view_rule(aten.split.Tensor)
def _split(x: Operand, offset: int, size: int, dim: int = 0) -> object:
    dim = wrap_dim(dim, len(x.shape))
    total: int = x.shape[dim]
    if size <= 0 or not total:
        return NotImplemented
    ends = [*((n + 1) * size for n in range(piece_count(total, size) - 1)), total]
    return tuple([_slice(x, offset, dim, n * size, end) for n, end in enumerate(ends)])


def piece_count(total: Any, size: Any) -> int:
    """How many pieces of a size there are, the last one maybe shorter: that is the program's, so
    whether it is shorter need not be asked."""
    return int((total + size - 1) // size)


@_view_rule(aten.split_with_sizes.default)
def _split_with_sizes(x: Operand, offset: int, sizes: Shape, dim: int = 0) -> tuple[object, ...]:
    dim = wrap_dim(dim, len(x.shape))
    if not must_equal(sum(sizes), x.shape[dim]):
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {x.shape[dim]} "
            f"(input tensor's size at dimension {dim}), but got split_sizes={list(sizes)}"
        )
    start = 0
    pieces = []
    for size in sizes:
        pieces.append(_slice(x, offset, dim, start, start + size))
        start += size
    return tuple(pieces)


@_view_rule(aten.unfold.default)
def _unfold(x: Operand, offset: int, dim: int, size: int, step: int) -> object:
    if not x.shape:
        return NotImplemented
    dim = wrap_dim(dim, len(x.shape))
    own: int = x.shape[dim]
    if size > own or step <= 0 or size < 0:
        return NotImplemented
    shape = (*x.shape[:dim], (own - size) // step + 1, *x.shape[dim + 1 :], size)
    moved = x.stride[dim] * step
    stride = (*x.stride[:dim], moved, *x.stride[dim + 1 :], x.stride[dim])
    return _made(x, shape, stride), offset
