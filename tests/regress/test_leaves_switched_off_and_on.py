"""`requires_grad` that is taken from a leaf and given back beside a history that leads to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def _off_and_on(weight: torch.Tensor) -> None:
    weight.requires_grad = False
    weight.requires_grad = True


def plain(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    loss = (weight * scale).square().sum()
    _off_and_on(weight)
    loss.backward()
    return loss.detach()


def named(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    loss = (weight * scale).square().sum()
    _off_and_on(weight)
    loss.backward(inputs=[weight])
    return loss.detach()


def asked(weight: torch.Tensor, scale: torch.Tensor) -> Any:
    loss = (weight * scale).square().sum()
    _off_and_on(weight)
    return torch.autograd.grad(loss, [weight, scale], allow_unused=True)


def before(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    _off_and_on(weight)
    loss = (weight * scale).square().sum()
    loss.backward(inputs=[weight])
    return loss.detach()


def given_back(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    loss = (weight * scale).square().sum()
    weight.requires_grad = False
    loss = loss + (weight * 3).sum()
    weight.requires_grad = True
    (loss * 2).backward(inputs=[weight])
    return loss.detach()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("function", [plain, named, asked, before, given_back])
def test_gradients(function: Callable[..., Any], backend: str) -> None:
    outcomes = []
    for call in (function, braze.compile(function, backend=backend)):
        weight, scale = (torch.tensor(x, requires_grad=True) for x in ([1.0, 2.0], [3.0, 1.0]))
        found = [call(weight, scale) for _ in range(2)]
        outcomes.append((found, weight.grad, scale.grad, weight.requires_grad))
    torch.testing.assert_close(*outcomes)
