"""`torch.set_default_device` moves the program's tensors, and none of what Braze makes for itself:
the numbers that graphs take, the memory that their kernels work in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.trace import Journal


@pytest.fixture(autouse=True)
def elsewhere() -> Iterator[None]:
    """Tensors that do not say where they are have no data."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def made(*shape: int, **options: Any) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel(), device="cpu", **options).view(shape) / 7


def numbers(x: torch.Tensor, by: float, n: int) -> Any:
    """As they change, they become symbols of the graph."""
    return x.softmax(-1) * by + n, (x * by).sum(0).exp()


def constants(x: torch.Tensor, by: float, n: int) -> Any:
    weight = torch.tensor([0.5, 2.0, 1.0], device="cpu")
    return (x * weight).sum(-1), x + torch.tensor(by, device="cpu"), torch.ones(3)


def drawn(x: torch.Tensor, by: float, n: int) -> Any:
    random.seed(n)
    return x * random.random() + random.randint(0, 3), x.sin() * random.uniform(by, 2)


def several_steps(x: torch.Tensor, by: float, n: int) -> Any:
    """What lies between two products is in planned memory."""
    return ((x @ x.mT).softmax(-1) @ x).tanh().cumsum(0), torch.empty(n).device


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [numbers, constants, drawn, several_steps])
def test_calls(function: Callable[..., Any], dynamic: bool | None, journal: Journal) -> None:
    compiled = braze.compile(function, dynamic=dynamic)
    for rows in (4, 5, 7, 4):
        inputs = made(rows, 3), 0.25 * rows, rows
        found, right = compiled(*inputs), function(*inputs)
        for mine, theirs in zip(found, right, strict=True):
            if isinstance(theirs, torch.Tensor) and theirs.device.type == "cpu":
                torch.testing.assert_close(mine, theirs)
            else:
                assert getattr(mine, "device", mine) == getattr(theirs, "device", theirs)
    assert not journal.fallbacks()


class Heads(nn.Module):
    """Results of different inputs, and a float that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4, device="cpu")
        self.second = nn.Linear(4, 2, device="cpu")

    def forward(self, x: torch.Tensor, by: float) -> tuple[torch.Tensor, torch.Tensor]:
        trunk = self.first(x).relu() * by
        return self.second(trunk), self.second.weight.square().sum()


def test_training(journal: Journal) -> None:
    outcomes = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = Heads()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        call = braze.compile(model) if compiles else model
        losses = []
        for step in range(4):
            first, second = call(made(5, 3), 0.5 + step)
            optimizer.zero_grad()
            first.square().mean().backward(retain_graph=True)
            second.backward()
            losses.append(first.detach().sum() + second.detach())
        outcomes.append((losses, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(*outcomes)
    assert not journal.fallbacks()
