"""Eager raises for gradients of None, and with respect to None; compiled programs went on without.

A random program shrank to it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze

Program = Callable[[torch.Tensor, "torch.Tensor | None"], torch.Tensor]


def grad_of(x: torch.Tensor, loss: torch.Tensor | None) -> torch.Tensor:
    torch.autograd.grad(loss, x, allow_unused=True)  # type: ignore[arg-type]
    return x + 1


def grad_by(x: torch.Tensor, loss: torch.Tensor | None) -> torch.Tensor:
    torch.autograd.grad(x.square().sum(), loss)  # type: ignore[arg-type]
    return x + 1


def backward_of(x: torch.Tensor, loss: torch.Tensor | None) -> torch.Tensor:
    torch.autograd.backward(loss)  # type: ignore[arg-type]
    return x + 1


@pytest.mark.parametrize("program", [grad_of, grad_by, backward_of])
@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
def test_none_raises_as_in_eager(program: Program, backend: str) -> None:
    compiled = braze.compile(program, backend=backend)
    for call in (program, compiled, compiled):
        with pytest.raises(TypeError, match="'NoneType' object is not iterable"):
            call(torch.ones(3, requires_grad=True), None)
