"""Whole training steps that went wrong, each as small as it gets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import braze
from braze.trace import JOURNAL


class Training:
    """A model, its optimizer, and a count of steps."""

    def __init__(self, model: nn.Module | None = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(6, 3) if model is None else model
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.count = 0

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        found = self.model(x)
        return (found[0] if isinstance(found, tuple) else found).square().mean()

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(x)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def run(
    step: Callable[[Training, torch.Tensor], Any], training: Training, count: int, *size: int
) -> tuple[Any, ...]:
    """Results, parameters and rate after some steps on the same numbers."""
    torch.manual_seed(1)
    results = [step(training, torch.randn(*size)) for _ in range(count)]
    parameters = [p.detach() for p in training.model.parameters()]
    return results, parameters, training.optimizer.param_groups[0]["lr"], training.count


def check(
    step: Callable[[Training, torch.Tensor], Any],
    make: Callable[[], Training] = Training,
    count: int = 3,
    size: tuple[int, ...] = (4, 6),
) -> list[str]:
    """Eager and compiled agree; gives what the compiles ended as."""
    expected = run(step, make(), count, *size)
    JOURNAL.clear()
    found = run(braze.compile(step, backend="aot_eager"), make(), count, *size)
    torch.testing.assert_close(found, expected)
    assert not JOURNAL.fallbacks()
    return [record.outcome for record in JOURNAL.records()]


def test_anomaly_detection_ends_with_its_region() -> None:
    def step(training: Training, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.set_detect_anomaly(True):
            return training.step(x)

    try:
        check(step)
        assert not torch.is_anomaly_enabled()
    finally:
        torch.autograd.set_detect_anomaly(False)


def test_a_step_compiled_before_does_not_pass_over_anomalies() -> None:
    def step(training: Training, x: torch.Tensor) -> torch.Tensor:
        training.optimizer.zero_grad()
        loss = training.model(x).sum().sqrt()
        loss.backward()
        return loss.detach()

    training = Training()
    compiled = braze.compile(step, backend="aot_eager")
    for _ in range(2):
        compiled(training, torch.ones(4, 6))
    nan = torch.full((4, 6), torch.nan)
    compiled(training, nan)
    with torch.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="nan values"):
        compiled(training, nan)


def test_a_recurrent_layer_in_a_step_is_compiled() -> None:
    def make() -> Training:
        torch.manual_seed(0)
        return Training(nn.LSTM(6, 5, batch_first=True))

    assert check(Training.step, make, size=(2, 3, 6)) == ["graph", "graph"]
