"""Reductions, softmax, scans, sorting."""

from __future__ import annotations

from typing import Any

import torch

from braze.compat.torch.aten import aten
from braze.ir.types import TensorType
from braze.shapes.demands import is_exactly
from braze.tracing.shape_rules.registry import rule
from braze.tracing.shape_rules.strides import Operand, contiguous, is_contiguous, tensor_type
from braze.tracing.shape_rules.type_promotion import floating
from braze.tracing.shape_rules.views import wrap_dim


def _dims(dims: Any, rank: int) -> set[int]:
    """The reduced dimensions; none given means all."""
    if dims is None:
        return set(range(rank))
    if isinstance(dims, int):
        return {wrap_dim(dims, rank)}
    found = {wrap_dim(d, rank) for d in dims}
    if len(found) != len(dims):
        raise RuntimeError(f"dim appears multiple times in the list of dims {list(dims)}")
    return found or set(range(rank))


def reduced(x: Operand, dims: object, keepdim: bool, dtype: torch.dtype) -> Any:
    """The result of reducing dimensions, for a contiguous tensor; the strides of others follow
    the operand's order, and are left to the meta kernel."""
    if not is_contiguous(x.shape, x.stride):
        return NotImplemented
    return _row_major(x, dims, keepdim, dtype)


def _row_major(x: Operand, dims: object, keepdim: bool, dtype: torch.dtype) -> TensorType:
    """The same where the result is row-major whatever the operand's strides are."""
    shape = x.shape
    gone = _dims(dims, len(shape))
    if keepdim:
        kept = tuple([1 if d in gone else size for d, size in enumerate(shape)])
    else:
        kept = tuple([size for d, size in enumerate(shape) if d not in gone])
    return contiguous(dtype, kept, x.device)


def _sum_dtype(x: Operand, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is not None:
        return dtype
    return x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64


@rule(aten.sum.default, aten.prod.default)
def _sum_all(x: Operand, *, dtype: torch.dtype | None = None) -> TensorType:
    return contiguous(_sum_dtype(x, dtype), (), x.device)


@rule(aten.sum.dim_IntList, aten.prod.dim_int)
def _sum(
    x: Operand, dims: object, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> object:
    return _row_major(x, dims, keepdim, _sum_dtype(x, dtype))


@rule(aten.mean.default)
def _mean_all(x: Operand, *, dtype: torch.dtype | None = None) -> object:
    dtype = dtype or x.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return NotImplemented
    return contiguous(dtype, (), x.device)


@rule(aten.mean.dim)
def _mean(
    x: Operand, dims: object, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> object:
    dtype = dtype or x.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return NotImplemented
    return _row_major(x, dims, keepdim, dtype)


def _is_empty(x: Operand) -> bool:
    """Whether a fold without neutral element has nothing to fold: an error in eager."""
    return any(is_exactly(size, 0) for size in x.shape)


@rule(aten.amax.default, aten.amin.default)
def _extreme(x: Operand, dims: object = (), keepdim: bool = False) -> object:
    if _is_empty(x):
        return NotImplemented
    return _row_major(x, dims, keepdim, x.dtype)


@rule(aten.max.default)
def _largest(x: Operand) -> TensorType:
    return _extreme_all(x, "max")


@rule(aten.min.default)
def _smallest(x: Operand) -> TensorType:
    return _extreme_all(x, "min")


def _extreme_all(x: Operand, name: str) -> TensorType:
    if _is_empty(x):
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
            "reduction dim with the 'dim' argument."
        )
    return contiguous(x.dtype, (), x.device)


@rule(aten.max.dim, aten.min.dim)
def _extreme_dim(x: Operand, dim: int, keepdim: bool = False) -> Any:
    if _is_empty(x) or not is_contiguous(x.shape, x.stride):
        return NotImplemented
    values = reduced(x, dim, keepdim, x.dtype)
    return values, tensor_type(torch.int64, values.shape, values.stride, x.device)


@rule(aten.argmax.default, aten.argmin.default)
def _argmax(x: Operand, dim: int | None = None, keepdim: bool = False) -> object:
    if _is_empty(x):
        return NotImplemented
    return reduced(x, dim, keepdim, torch.int64)


@rule(aten.any.default, aten.all.default)
def _any(x: Operand) -> TensorType:
    dtype = torch.uint8 if x.dtype is torch.uint8 else torch.bool
    return contiguous(dtype, (), x.device)


@rule(aten.any.dim, aten.all.dim)
def _any_dim(x: Operand, dim: int, keepdim: bool = False) -> object:
    return reduced(x, dim, keepdim, torch.uint8 if x.dtype is torch.uint8 else torch.bool)


@rule(aten.var.correction, aten.std.correction)
def _variance(
    x: Operand, dims: object = None, *, correction: object = None, keepdim: bool = False
) -> object:
    if not x.dtype.is_floating_point:
        return NotImplemented
    return reduced(x, dims, keepdim, x.dtype)


@rule(aten.var_mean.correction, aten.std_mean.correction)
def _variance_mean(
    x: Operand, dims: object = None, *, correction: object = None, keepdim: bool = False
) -> object:
    if not x.dtype.is_floating_point:
        return NotImplemented
    result = reduced(x, dims, keepdim, x.dtype)
    return NotImplemented if result is NotImplemented else (result, result)


@rule(aten._softmax.default, aten._log_softmax.default)
def _softmax(x: Operand, dim: int, half_to_float: bool) -> TensorType:
    dtype = torch.float32 if half_to_float else x.dtype
    wrap_dim(dim, len(x.shape))
    return contiguous(dtype, x.shape, x.device)


@rule(aten.cumsum.default, aten.cumprod.default)
def _scan(x: Operand, dim: int, *, dtype: torch.dtype | None = None) -> TensorType:
    wrap_dim(dim, len(x.shape))
    return contiguous(_sum_dtype(x, dtype), x.shape, x.device)


@rule(aten.topk.default)
def _topk(x: Operand, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> object:
    rank = len(x.shape)
    dim = wrap_dim(dim, rank)
    if rank and k > x.shape[dim]:
        return NotImplemented
    shape = list(x.shape)
    if rank:
        shape[dim] = k
    kept = tuple(shape)
    return contiguous(x.dtype, kept, x.device), contiguous(torch.int64, kept, x.device)


@rule(aten.linalg_vector_norm.default)
def _vector_norm(
    x: Operand,
    order: object = 2,
    dims: object = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> object:
    if dtype is not None or not x.dtype.is_floating_point or 0 in x.shape:
        return NotImplemented
    return _row_major(x, dims, keepdim, floating(x.dtype))
