"""Fourier transforms on the CPU; between real and complex numbers half a dimension is kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.compat.torch.aten import aten
from braze.tracing.shape_rules.registry import rule
from braze.tracing.shape_rules.strides import Operand, contiguous_stride, is_contiguous, tensor_type

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {number: real for real, number in _COMPLEX.items()}
_MOST_DIMS = 3  # that the library transforms at once


@rule(aten._fft_r2c.default)
def _real_to_complex(x: Operand, dims: Sequence[int], normalization: int, onesided: bool) -> object:
    if x.dtype not in _COMPLEX or not onesided:
        return NotImplemented
    last = x.shape[dims[-1]] // 2 + 1 if dims else 0
    # All but the last by descending stride.
    ordered = sorted(dims[:-1], key=functools.cmp_to_key(_by_stride(x)))
    return _transformed(x, [*ordered, *dims[-1:]], last, _COMPLEX[x.dtype])


@rule(aten._fft_c2r.default)
def _complex_to_real(x: Operand, dims: Sequence[int], normalization: int, last: object) -> object:
    if x.dtype not in _REAL:
        return NotImplemented
    if len(dims) == 2 and not is_contiguous(x.shape, x.stride):
        x = _complex_to_complex(x, dims[:1], normalization, False)
        return _transformed(x, dims[1:], last, _REAL[x.dtype]) if x is not NotImplemented else x
    if len(dims) > 1 and not is_contiguous(x.shape, x.stride):
        return NotImplemented
    return _transformed(x, dims, last, _REAL[x.dtype])


@rule(aten._fft_c2c.default)
def _complex_to_complex(x: Operand, dims: Sequence[int], normalization: int, forward: bool) -> Any:
    if x.dtype not in _REAL or len(dims) != 1 or not x.shape:
        return NotImplemented
    return _transformed(x, dims, x.shape[dims[0]], x.dtype)


def _transformed(x: Operand, dims: Sequence[int], last: Any, dtype: torch.dtype) -> object:
    """Batch dimensions outermost, those with the longest steps first, then the transformed ones, of
    contiguous values in the order asked for."""
    rank = len(x.shape)
    chosen = [dim % rank for dim in dims] if rank else []
    if x.device.type != "cpu" or not 0 < len(chosen) <= _MOST_DIMS:
        return NotImplemented
    shape = [*x.shape]
    shape[chosen[-1]] = last
    order = _batch_dims(x, chosen) + chosen
    steps = contiguous_stride(tuple(shape[dim] for dim in order))
    stride = tuple(step for _, step in sorted(zip(order, steps, strict=True), key=lambda p: p[0]))
    return tensor_type(dtype, tuple(shape), stride, x.device)


def _batch_dims(x: Operand, chosen: list[int]) -> list[int]:
    """The other dimensions by descending stride; among equal strides the last one stands where the
    transformed one was, as `std::partition` leaves them."""
    dims = [*range(len(x.shape))]
    if len(chosen) == 1:
        dims[chosen[0]] = dims[-1]
        dims.pop()
    batch = [dim for dim in dims if dim not in chosen]
    return sorted(batch, key=functools.cmp_to_key(_by_stride(x)))


def _by_stride(x: Operand) -> Callable[[int, int], int]:
    """Compares dimensions: those of longer steps come first."""
    stride: Sequence[Any] = x.stride
    return lambda a, b: -1 if stride[a] > stride[b] else 1
