"""Tensors that come from elsewhere, in the layout that kernels and backwards were compiled for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch

from braze.ir.types import Size
from braze.shapes.expr import Symbol, as_expr, symbols

Names: TypeAlias = Mapping[Symbol, str]


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


def names_with(names: Names, tensor: str, shape: Sequence[Size]) -> Names:
    """Names of symbols, of those that have none by the tensor whose size they are: strides of a
    result may be of a size that depends on data and is first known of it."""
    found: dict[Symbol, str] = {}
    for dim, size in enumerate(shape):
        for symbol in symbols(size) - names.keys():
            if as_expr(size) == as_expr(symbol):
                found[symbol] = f"{tensor}.shape[{dim}]"
    return {**found, **names} if found else names
