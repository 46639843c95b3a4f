"""What every generated program imports: small tensors with exact values, and a backward pass."""

from __future__ import annotations

import math
from typing import Any

import torch


def T(*shape: int, dtype: torch.dtype = torch.float32, start: int = 0) -> torch.Tensor:
    """A tensor of few-bit numbers of both signs, so that sums are exact in any order."""
    numbers = (torch.arange(math.prod(shape), dtype=torch.int64) * 37 + start * 11) % 17 - 8
    if dtype is torch.bool:
        return (numbers > 0).reshape(shape)
    if dtype is torch.int64:
        return numbers.reshape(shape)
    return (numbers.to(dtype) / 4).reshape(shape)


def P(*shape: int, start: int = 0) -> torch.Tensor:
    """A leaf that wants gradients."""
    return T(*shape, start=start).requires_grad_()


def H(value: float) -> torch.Tensor:
    """A number as a 0-dim tensor on the host, wherever tensors are made."""
    return torch.tensor(value, device="cpu")


def T64(*shape: int, dtype: torch.dtype = torch.float64, start: int = 0) -> torch.Tensor:
    """`T` for a program that computes in float64."""
    return T(*shape, dtype=dtype, start=start)


def P64(*shape: int, start: int = 0) -> torch.Tensor:
    """`P` for such a program."""
    return T64(*shape, start=start).requires_grad_()


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a result, at any depth of lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def backward(value: Any, retain_graph: bool = False) -> None:
    """Gradients of the sum of every result that carries them."""
    carriers = [t for t in tensors_in(value) if t.requires_grad]
    if carriers:
        torch.stack([t.double().sum() for t in carriers]).sum().backward(retain_graph=retain_graph)


def backward_twice(value: Any, *leaves: torch.Tensor) -> None:
    """Gradients of the squares of the gradients of every result's sum, as penalties have them."""
    carriers = [t for t in tensors_in(value) if t.requires_grad]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not carriers or not wanted:
        return
    total = torch.stack([t.double().sum() for t in carriers]).sum()
    slopes = torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True)
    squares = [s.square().sum() for s in slopes if s is not None and s.requires_grad]
    if squares:
        torch.stack(squares).sum().backward()
