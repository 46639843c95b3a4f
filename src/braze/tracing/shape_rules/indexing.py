"""Factories, joins, gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from braze.compat.torch.aten import aten
from braze.ir.types import TensorType
from braze.shapes.demands import is_computed, must_equal
from braze.shapes.symbolic import SymbolicSize
from braze.tracing.shape_rules.meta_fallback import explicit_device
from braze.tracing.shape_rules.pointwise_strides import Shape
from braze.tracing.shape_rules.registry import VIEW_RULES, rule
from braze.tracing.shape_rules.strides import (
    Operand,
    broadcast_shape,
    channels_last_stride,
    contiguous,
    contiguous_stride,
    is_contiguous,
    ordered_stride,
    overlaps_itself,
    preserved_stride,
    suggests_channels_last,
    tensor_type,
)
from braze.tracing.shape_rules.type_promotion import common_device, number_dtype, promoted
from braze.tracing.shape_rules.views import completed_shape, wrap_dim
from braze.tracing.symbolic.infer_by_sampling import has_symbols


def _made(shape: tuple[int, ...], dtype: torch.dtype | None, layout: object, device: object) -> Any:
    if layout not in (None, torch.strided) or any(size < 0 for size in shape):
        return NotImplemented
    where = explicit_device(torch.get_default_device() if device is None else device)
    return contiguous(dtype or torch.get_default_dtype(), tuple(shape), where)


@rule(
    aten.zeros.default,
    aten.ones.default,
    aten.rand.default,
    aten.randn.default,
)
def _filled(
    shape: Shape,
    *,
    dtype: Any = None,
    layout: object = None,
    device: object = None,
    pin_memory: object = None,
) -> object:
    return _made(shape, dtype, layout, device)


@rule(aten.empty.memory_format)
def _empty(shape: Shape, *, memory_format: object = None, **options: object) -> object:
    if memory_format not in (None, torch.contiguous_format):
        return NotImplemented
    return _filled(shape, **options)


@rule(aten.full.default)
def _full(shape: Shape, value: object, *, dtype: object = None, **options: object) -> object:
    return _filled(shape, dtype=dtype or number_dtype(value), **options)


@rule(aten.scalar_tensor.default)
def _scalar(value: object, *, dtype: object = None, **options: object) -> object:
    return _filled((), dtype=dtype, **options)


@rule(aten.empty_strided.default)
def _empty_strided(
    shape: Shape,
    stride: Shape,
    *,
    dtype: torch.dtype | None = None,
    layout: object = None,
    device: object = None,
    pin_memory: object = None,
) -> Any:
    made = _made(shape, dtype, layout, device)
    if made is NotImplemented:
        return made
    return tensor_type(made.dtype, made.shape, tuple(stride), made.device)


@rule(aten.arange.default)
def _arange_end(end: object, **options: object) -> object:
    return _arange(0, end, **options)


@rule(aten.arange.start)
def _arange_start(start: object, end: object, **options: object) -> object:
    return _arange(start, end, **options)


@rule(aten.arange.start_step)
def _arange(
    start: Any, end: Any, step: object = 1, *, dtype: Any = None, **options: object
) -> object:
    numbers = (start, end, step)
    if not all(type(number) in (int, float, SymbolicSize) for number in numbers) or not step:
        return NotImplemented
    if dtype is None:
        is_float = any(type(number) is float for number in numbers)
        dtype = torch.get_default_dtype() if is_float else torch.int64
    start, end, step = map(_as_whole, numbers)
    whole = not any(type(number) is float for number in (start, end, step))
    length = -(-(end - start) // step) if whole else math.ceil((end - start) / step)
    if length < 0 or not (whole or dtype.is_floating_point):
        return NotImplemented
    return _filled((length,), dtype=dtype, **options)


def _as_whole(number: Any) -> object:
    """`1.0` as `1`: with the integers beside it, which may be symbols, it says a length."""
    exact = type(number) is float and abs(number) < _EXACT and number.is_integer()
    return int(number) if exact else number


_EXACT = 1 << 53  # below it floats hold every integer


@rule(aten.linspace.default)
def _linspace(
    start: object, end: object, steps: Any, *, dtype: object = None, **options: object
) -> object:
    if not all(type(end) in (int, float) for end in (start, end)) or steps < 0:
        return NotImplemented
    return _filled((steps,), dtype=dtype, **options)


@rule(aten.cat.default)
def _cat(tensors: tuple[Operand, ...], dim: int = 0) -> object:
    """Channels-last where every part is taken for it, else row-major. An empty vector joins
    anything: so do caches begin."""
    if not tensors:
        return NotImplemented
    parts = [t for t in tensors if t.shape != (0,)]
    first = parts[0] if parts else tensors[0]
    rank = len(first.shape)
    if not rank or any(len(t.shape) != rank for t in parts):
        return NotImplemented
    dim = wrap_dim(dim, rank)
    total = 0
    for tensor in parts:
        if tensor is not first and any(
            d != dim and not must_equal(size, first.shape[d]) for d, size in enumerate(tensor.shape)
        ):
            return NotImplemented
        total += tensor.shape[dim]
    shape: Shape = (*first.shape[:dim], total, *first.shape[dim + 1 :])
    dtype, device = promoted(tensors), common_device(tensors)
    if device.type == "cpu" and all(suggests_channels_last(t.shape, t.stride) for t in tensors):
        return tensor_type(dtype, shape, channels_last_stride(shape), device)
    return contiguous(dtype, shape, device)


@rule(aten.index.Tensor)
def _index(x: Operand, indices: tuple[Operand | None, ...]) -> object:
    """Every dimension indexed by integers: the memory is ordered as the indices'."""
    if x.device.type != "cpu" or len(indices) != len(x.shape):
        return NotImplemented
    if not all(i is not None and i.dtype in (torch.int64, torch.int32) for i in indices):
        return NotImplemented
    operands = tuple([(i.shape, i.stride) for i in indices if i is not None])
    shape = broadcast_shape(tuple([size for size, _ in operands]))
    placed = tuple([(shape, _index_stride(shape, *operand)) for operand in operands])
    return tensor_type(x.dtype, shape, ordered_stride(shape, placed), x.device)


def _index_stride(shape: Shape, own_shape: Shape, stride: Shape) -> Shape:
    """Strides of an index as the kernel has them: expanded to the shape, then reshaped to it, which
    gives sizes of one the stride of what is behind them."""
    if not own_shape:
        return (0,) * len(shape)
    lead = len(shape) - len(own_shape)
    steps = [0] * lead
    for size, step, target in zip(own_shape, stride, shape[lead:]):
        steps.append(0 if size == 1 and target != 1 else step)
    base, count = steps[-1], 1
    for dim in reversed(range(len(shape))):
        if shape[dim] == 1:
            steps[dim] = base * count
        count = count * shape[dim]
        if dim and shape[dim - 1] != 1 and steps[dim - 1] != base * count:
            base, count = steps[dim - 1], 1
    return tuple(steps)


@rule(aten.stack.default)
def _stack(tensors: tuple[Operand, ...], dim: int = 0) -> object:
    """Row-major but where the join that eager makes of it would be channels-last: of the tensors
    as they are, or, behind their last dimension, with one of size one more."""
    if not tensors:
        return NotImplemented
    first = tensors[0]
    if any(t.shape != first.shape for t in tensors):
        return NotImplemented
    rank = len(first.shape)
    dim = wrap_dim(dim, rank + 1)
    last = () if dim < rank else (1,)
    if any(suggests_channels_last((*t.shape, *last), (*t.stride, *last)) for t in tensors):
        return NotImplemented
    shape = (*first.shape[:dim], len(tensors), *first.shape[dim:])
    return contiguous(promoted(tensors), shape, common_device(tensors))


@rule(aten.embedding.default)
def _embedding(
    weight: Operand,
    indices: Operand,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> object:
    if len(weight.shape) != 2 or indices.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    shape = (*indices.shape, weight.shape[1])
    return contiguous(weight.dtype, shape, common_device((weight, indices)))


@rule(aten.index_select.default)
def _index_select(x: Operand, dim: int, index: Operand) -> object:
    if not x.shape or len(index.shape) > 1:
        return NotImplemented
    dim = wrap_dim(dim, len(x.shape))
    count = index.shape[0] if index.shape else 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    return contiguous(x.dtype, shape, common_device((x, index)))


def _is_within(index: Operand, x: Operand, but: int | None) -> bool:
    """Whether no dimension of the index, but one, is longer than the operand's."""
    pairs = enumerate(zip(index.shape, x.shape))
    return all(d == but or i is n or i <= n for d, (i, n) in pairs)


@rule(aten.gather.default)
def _gather(x: Operand, dim: int, index: Operand, *, sparse_grad: bool = False) -> object:
    if len(x.shape) != len(index.shape) or index.dtype is not torch.int64:
        return NotImplemented
    if not _is_within(index, x, wrap_dim(dim, len(x.shape))):
        return NotImplemented
    return contiguous(x.dtype, index.shape, common_device((x, index)))


@rule(aten.tril.default, aten.triu.default)
def _triangle(x: Operand, diagonal: int = 0) -> object:
    """Row-major whatever the operand is; meta kernels say otherwise."""
    if len(x.shape) < 2:
        return NotImplemented
    return contiguous(x.dtype, x.shape, x.device)


@rule(aten.tril_indices.default)
def _lower_indices(
    rows: object, columns: object, offset: object = 0, *, dtype: object = None, **options: object
) -> Any:
    count = _in_lower_triangle(rows, columns, offset)
    return _filled((2, count), dtype=dtype or torch.int64, **options)


@rule(aten.triu_indices.default)
def _upper_indices(
    rows: Any, columns: Any, offset: Any = 0, *, dtype: object = None, **options: object
) -> object:
    count = rows * columns - _in_lower_triangle(rows, columns, offset - 1)
    return _filled((2, count), dtype=dtype or torch.int64, **options)


def _in_lower_triangle(rows: Any, columns: Any, offset: Any) -> Any:
    """How many elements of a matrix are on or below a diagonal: rows that grow by one, then whole
    ones."""
    if rows == 0 or columns == 0:
        return 0
    first = min(columns, 1 + offset) if offset > 0 else int(bool(rows + offset > 0))
    last = max(0, min(columns, rows + offset))
    growing = last - first + 1
    whole = max(0, min(rows, rows + offset)) - growing
    count = (first + last) * growing // 2
    return count + whole * columns if whole > 0 else count


def _is_empty(size: Any) -> bool:
    """Whether a padded size is none; what is not known of it is at least zero."""
    return not is_computed(size) and bool(size <= 0)


@rule(aten.constant_pad_nd.default)
def _pad(x: Operand, padding: Shape, value: object = 0) -> object:
    if not is_contiguous(x.shape, x.stride) or len(padding) % 2:
        return NotImplemented
    if any(amount < 0 for amount in padding):
        return NotImplemented
    shape = list(x.shape)
    for index in range(len(padding) // 2):
        shape[-1 - index] += padding[2 * index] + padding[2 * index + 1]
    if len(padding) > 2 * len(x.shape) or any(map(_is_empty, shape)):
        return NotImplemented
    made: Shape = tuple(shape)
    if all(type(amount) is int and not amount for amount in padding):  # a clone
        return tensor_type(x.dtype, made, preserved_stride(made, x.stride), x.device)
    if suggests_channels_last(x.shape, x.stride):
        return tensor_type(x.dtype, made, channels_last_stride(made), x.device)
    return contiguous(x.dtype, made, x.device)


@rule(aten.flip.default)
def _flip(x: Operand, dims: Shape) -> object:
    for dim in dims:
        wrap_dim(dim, len(x.shape))
    if len({wrap_dim(dim, len(x.shape)) for dim in dims}) != len(dims):
        return NotImplemented
    return tensor_type(x.dtype, x.shape, preserved_stride(x.shape, x.stride), x.device)


@rule(aten._unsafe_view.default)
def _unsafe_view(x: Operand, shape: Shape) -> object:
    if not is_contiguous(x.shape, x.stride):
        return NotImplemented
    numel = math.prod(x.shape)
    return contiguous(x.dtype, completed_shape(tuple(shape), numel), x.device)


def _scatter_into(view: object) -> Callable[..., object]:
    """The rule of an operator that puts `source` at the places of a view of a copy of `x`."""

    def rule_of_scatter(x: Operand, source: Operand, *where: object) -> object:
        """The result has memory for each element: of an expanded operand, the meta kernels of
        PyTorch 2.11 give the operand's own strides."""
        _check_source(view, x, source, where)
        if overlaps_itself(x.shape, x.stride):
            stride = preserved_stride(x.shape, x.stride)
            return tensor_type(x.dtype, x.shape, stride, x.device)
        if x.requires_grad or x.stride != preserved_stride(x.shape, x.stride):
            return NotImplemented
        return x

    return rule_of_scatter


def _check_source(view: object, x: Operand, source: Operand, where: tuple[Any, ...]) -> None:
    """Raise as eager where the source has not the shape of the places. Kernels believe that it has,
    and not all meta kernels look."""
    if view is aten.as_strided.default:
        shape = tuple(where[0])
    else:
        viewed = VIEW_RULES[view](x, 0, *where)
        if viewed is NotImplemented:  # dimensions that the operator itself refuses
            return
        shape = viewed[0].shape
    if len(shape) != len(source.shape) or not all(map(must_equal, shape, source.shape)):
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. "
            f"src size = {list(source.shape)}, slice size = {list(shape)}"
        )


for _scatter, _view in (
    (aten.slice_scatter.default, aten.slice.Tensor),
    (aten.select_scatter.default, aten.select.int),
    (aten.diagonal_scatter.default, aten.diagonal.default),
    (aten.as_strided_scatter.default, aten.as_strided.default),
):
    rule(_scatter)(_scatter_into(_view))


@rule(aten.scatter.src, aten.scatter.value, aten.scatter_add.default)
def _scatter_elements(x: Operand, dim: int, index: Operand, source: Any) -> object:
    rank = len(x.shape)
    if not is_contiguous(x.shape, x.stride) or len(index.shape) != rank:
        return NotImplemented
    from_tensor = isinstance(source, TensorType)
    if from_tensor and (len(source.shape) != rank or not _is_within(index, source, None)):
        return NotImplemented
    if not _is_within(index, x, wrap_dim(dim, rank)):
        return NotImplemented
    return contiguous(x.dtype, x.shape, common_device((x, index)))


@rule(aten.roll.default)
def _roll(x: Operand, shifts: object, dims: object = ()) -> object:
    """Of symbolic sizes, row-major: the result is, too. Probing finds no expression for sizes of
    several terms, such as those of padded windows."""
    shifts, dims = (n if isinstance(n, (list, tuple)) else (n,) for n in (shifts, dims))
    rank = len(x.shape)
    fits = len(shifts) == (len(dims) or 1) and all(-rank <= dim < rank for dim in dims)
    if not fits or 1 in [n for n in x.shape if type(n) is int]:
        return NotImplemented
    if not has_symbols(x) or x.stride != contiguous_stride(x.shape):
        return NotImplemented
    return contiguous(x.dtype, x.shape, x.device)


@rule(aten.view_copy.default)
def _view_copy(x: Operand, shape: Shape) -> TensorType:
    numel = math.prod(x.shape)
    return contiguous(x.dtype, completed_shape(tuple(shape), numel), x.device)
