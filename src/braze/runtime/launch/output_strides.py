"""Gradients that come in, in the layout that a compiled backward expects."""

from __future__ import annotations

import torch


def restride(tangent: torch.Tensor, dtype: torch.dtype, stride: tuple[int, ...]) -> torch.Tensor:
    """A gradient in the layout that the backward was compiled for."""
    if tangent.layout is not torch.strided:
        tangent = tangent.to_dense()
    copy = torch.empty_strided(tangent.shape, stride, dtype=dtype, device=tangent.device)
    return copy.copy_(tangent)


def restride_batched(
    tangent: torch.Tensor, dtype: torch.dtype, stride: tuple[int, ...]
) -> torch.Tensor:
    """The same, for each of a batch: by operators that a vmap goes through."""
    order = sorted(range(len(stride)), key=lambda axis: -stride[axis])
    back = [order.index(axis) for axis in range(len(order))]
    return tangent.to(dtype).permute(order).contiguous().permute(back)
