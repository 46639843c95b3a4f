"""What training steps do beside forward, backward and update: clipping, schedules.

Each is one graph, compiled twice at most (the second has the optimizer's state), and leaves what
eager leaves.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import swa_utils

import braze
from braze.trace import JOURNAL


class Training:
    """A small model and all that trains it."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
        self.optimizer = make(self.model.parameters())
        self.other = nn.Linear(2, 6)
        self.second = optim.Adam(self.other.parameters(), lr=0.01)
        self.mean = swa_utils.AveragedModel(self.model)
        average = swa_utils.get_ema_multi_avg_fn(0.9)
        self.moving = swa_utils.AveragedModel(self.model, multi_avg_fn=average)
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
    models = (training.model, training.other, training.mean, training.moving)
    states = [t.detach() for model in models for t in model.state_dict().values()]
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


def test_a_norm_that_is_not_finite_raises_before_anything_is_written() -> None:
    def step(training: Training, x: torch.Tensor) -> torch.Tensor:
        loss = training.loss(x)
        parameters = training.model.parameters()
        nn.utils.clip_grad_norm_(parameters, 0.05, error_if_nonfinite=True)
        training.optimizer.step()
        return loss

    def run(step: Callable[..., torch.Tensor]) -> tuple[Any, ...]:
        training = Training(sgd)
        for scale in (1.0, 1.0, math.inf, 1.0, 1.0):
            x = torch.full((4, 6), scale)
            if scale == 1.0:
                step(training, x)
                continue
            with pytest.raises(RuntimeError, match="The total norm of order"):
                step(training, x)
        moments = [training.optimizer.state[p] for p in training.model.parameters()]
        return training.model.state_dict(), moments

    expected = run(step)
    JOURNAL.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run(braze.compile(step, fullgraph=True))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert [record.outcome for record in JOURNAL.records()] == ["graph", "graph"]


def accumulated(training: Training, x: torch.Tensor) -> torch.Tensor:
    training.optimizer.zero_grad(set_to_none=False)
    total = torch.zeros(())
    for part in x.chunk(4):
        loss = training.model(part).square().mean() / 4
        loss.backward()
        total = total + loss.detach()
    training.optimizer.step()
    return total


def adversarial(training: Training, x: torch.Tensor) -> torch.Tensor:
    made = training.other(x[:, :2]) + x
    training.optimizer.zero_grad()
    loss = training.model(x).square().mean() - training.model(made.detach()).mean()
    loss.backward()
    training.optimizer.step()
    training.second.zero_grad()
    training.model(made).mean().backward()
    training.second.step()
    return loss.detach()


def by_total_norm(training: Training, x: torch.Tensor) -> torch.Tensor:
    loss = training.loss(x)
    parameters = list(training.model.parameters())
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    nn.utils.clip_grads_with_norm_(parameters, 0.05, norm)
    training.optimizer.step()
    return loss + norm


def averaged(training: Training, x: torch.Tensor) -> torch.Tensor:
    loss = plain(training, x)
    training.mean.update_parameters(training.model)
    training.moving.update_parameters(training.model)
    return loss


def groups(parameters: Any) -> Any:
    matrices, rest = [], []
    for p in parameters:
        (matrices if p.dim() > 1 else rest).append(p)
    return optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], 0.01
    )


@pytest.mark.parametrize("step", [accumulated, adversarial, by_total_norm, averaged])
def test_other_steps(step: Callable[..., torch.Tensor]) -> None:
    check(step, groups, 4)


def plain(training: Training, x: torch.Tensor) -> torch.Tensor:
    loss = training.loss(x)
    training.optimizer.step()
    return loss


def test_a_schedule_of_100_steps_is_compiled_twice() -> None:
    check(plain, adamw, 100)
