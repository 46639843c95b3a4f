"""Transforms between real and complex numbers on the CPU, of which half a dimension is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.ir.types import TensorType
from braze.standins.layout import contiguous_stride, is_contiguous, tensor_type
from braze.standins.rules.table import rule

aten = torch.ops.aten

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {number: real for real, number in _COMPLEX.items()}
_MOST_DIMS = 3  # that the library transforms at once


@rule(aten._fft_r2c.default)
def _real_to_complex(x: TensorType, dims: Sequence[int], normalization: int, onesided: bool) -> Any:
    if x.dtype not in _COMPLEX or not onesided:
        return NotImplemented
    last = x.shape[dims[-1]] // 2 + 1 if dims else 0
    return _transformed(x, dims, last, _COMPLEX[x.dtype])


@rule(aten._fft_c2r.default)
def _complex_to_real(x: TensorType, dims: Sequence[int], normalization: int, last: Any) -> Any:
    return _transformed(x, dims, last, _REAL[x.dtype]) if x.dtype in _REAL else NotImplemented


def _transformed(x: TensorType, dims: Sequence[int], last: Any, dtype: torch.dtype) -> Any:
    """Batch dimensions outermost, then those transformed, in the order asked for."""
    rank = len(x.shape)
    chosen = [dim % rank for dim in dims] if rank else []
    if x.device.type != "cpu" or not 0 < len(chosen) <= _MOST_DIMS:
        return NotImplemented
    if not is_contiguous(x.shape, x.stride):  # type: ignore[arg-type]
        return NotImplemented
    shape = [*x.shape]
    shape[chosen[-1]] = last
    order = [dim for dim in range(rank) if dim not in chosen] + chosen
    steps = contiguous_stride(tuple(shape[dim] for dim in order))  # type: ignore[misc]
    stride = tuple(step for _, step in sorted(zip(order, steps, strict=True), key=lambda p: p[0]))
    return tensor_type(dtype, tuple(shape), stride, x.device)  # type: ignore[arg-type]
