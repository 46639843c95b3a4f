"""What training steps do beside forward, backward and update: clipping, schedules.

Each is one graph, compiled twice at most (the second has the optimizer's state), and leaves what
eager leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import braze
from braze.trace import JOURNAL


class Training:
    """A small model and all that trains it."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
        self.optimizer = make(self.model.parameters())
        self.schedule = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        return loss.detach()


def by_norm(training: Training, x: torch.Tensor, foreach: bool) -> torch.Tensor:
    loss = training.loss(x)
    nn.utils.clip_grad_norm_(training.model.parameters(), 0.05, foreach=foreach)
    training.optimizer.step()
    return loss


def by_value(training: Training, x: torch.Tensor, foreach: bool) -> torch.Tensor:
    loss = training.loss(x)
    nn.utils.clip_grad_value_(training.model.parameters(), 0.01, foreach=foreach)
    training.optimizer.step()
    return loss


def trained(
    step: Callable[..., torch.Tensor], make: Callable[[Any], Any], steps: int, **options: bool
) -> tuple[Any, ...]:
    """Losses, and what is left at the end."""
    training = Training(make)
    losses = []
    for _ in range(steps):
        losses.append(step(training, torch.randn(4, 6), **options))
        training.schedule.step()
    states = [t.detach() for t in training.model.state_dict().values()]
    gradients = [p.grad for p in training.model.parameters()]
    return losses, states, gradients, [group["lr"] for group in training.optimizer.param_groups]


def sgd(parameters: Any) -> Any:
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: Any) -> Any:
    return optim.AdamW(parameters, lr=0.01)


def check(
    step: Callable[..., torch.Tensor], make: Callable[[Any], Any], steps: int, **options: bool
) -> None:
    expected = trained(step, make, steps, **options)
    JOURNAL.clear()
    found = trained(braze.compile(step, fullgraph=True), make, steps, **options)
    outcomes = [record.outcome for record in JOURNAL.records()]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert outcomes == ["graph", "graph"]
    assert not JOURNAL.fallbacks()


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("step", [by_norm, by_value])
def test_clipping(step: Callable[..., torch.Tensor], foreach: bool) -> None:
    check(step, sgd, 5, foreach=foreach)


def plain(training: Training, x: torch.Tensor) -> torch.Tensor:
    loss = training.loss(x)
    training.optimizer.step()
    return loss


def test_a_schedule_of_100_steps_is_compiled_twice() -> None:
    check(plain, adamw, 100)
