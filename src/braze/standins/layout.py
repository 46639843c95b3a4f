"""Shapes, strides and memory formats: what the shape rules share."""

from __future__ import annotations

import functools

import torch

from braze.ir.types import TensorType

Shape = tuple[int, ...]


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
        step *= max(size, 1)
    return tuple(reversed(stride))


@functools.lru_cache(maxsize=1 << 14)
def is_dense(shape: Shape, stride: Shape) -> bool:
    """Whether the elements fill their memory without gaps or overlap."""
    if 0 in shape:
        return True
    expected = 1
    for step, size in sorted((st, sz) for sz, st in zip(shape, stride) if sz != 1):
        if step != expected:
            return False
        expected *= size
    return True


@functools.lru_cache(maxsize=1 << 14)
def same_layout(shape: Shape, stride: Shape, other: Shape) -> bool:
    """Whether two strides address the same elements (dimensions of size 1 do not matter)."""
    return all(a == b or size == 1 for size, a, b in zip(shape, stride, other)) or 0 in shape


@functools.lru_cache(maxsize=1 << 14)
def memory_order(shape: Shape, stride: Shape) -> Shape:
    """The dimensions from the largest stride to the smallest."""
    return tuple(sorted(range(len(shape)), key=lambda d: (-stride[d], -shape[d], d)))


def contiguous(dtype: torch.dtype, shape: Shape, device: torch.device) -> TensorType:
    """A row-major tensor."""
    return tensor_type(dtype, shape, contiguous_stride(shape), device)
