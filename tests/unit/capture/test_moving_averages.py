"""`AveragedModel.update_parameters()` in the step: one graph, the first update too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import swa_utils

import braze
from tests.unit.capture.test_backward import breaks_of
from tests.unit.capture.test_whole_step import OPTIMIZERS, Training, compiles_of

KINDS: dict[str, dict[str, Any]] = {
    "exponential": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
    "exponential, one by one": {"avg_fn": swa_utils.get_ema_avg_fn(0.9)},
    "equal": {},
    "equal, one by one": {"avg_fn": swa_utils.get_swa_avg_fn()},
    "buffers": {"use_buffers": True},
    "own": {"avg_fn": lambda mean, new, count: mean * 0.9 + new * 0.1},
}


class Averaged(Training):
    def __init__(self, **options: Any) -> None:
        super().__init__(OPTIMIZERS["momentum"])
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        self.optimizer = OPTIMIZERS["momentum"](list(self.model.parameters()))
        self.average = swa_utils.AveragedModel(self.model, **options)

    def both(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.step(x, y)
        self.average.update_parameters(self.model)
        return loss

    def train(self, step: Any, count: int = 5) -> None:
        for seed in range(count):
            torch.manual_seed(seed)
            step(torch.randn(8, 6), torch.randint(0, 3, (8,)))


def compare(backend: str, **options: Any) -> Any:
    eager, ours = Averaged(**options), Averaged(**options)
    compiled = braze.compile(ours.both, backend=backend)
    eager.train(eager.both)
    ours.train(compiled)
    expected = eager.average.state_dict()
    for name, found in ours.average.state_dict().items():
        torch.testing.assert_close(found, expected[name], rtol=1e-4, atol=1e-6)
    return compiled


@pytest.mark.parametrize("name", KINDS)
def test_kinds(name: str) -> None:
    compiled = compare("aot_eager", **KINDS[name])
    assert (breaks_of(compiled), compiles_of(compiled)) == ([], 2)


def test_kernels() -> None:
    compiled = compare("braze", **KINDS["exponential"])
    assert compiles_of(compiled) == 2


@pytest.mark.parametrize("name", KINDS)
def test_compiled_alone(name: str) -> None:
    eager, ours = Averaged(**KINDS[name]), Averaged(**KINDS[name])
    update = braze.compile(ours.average.update_parameters)
    for seed in range(4):
        for training in (eager, ours):
            torch.manual_seed(seed)
            for kept in training.model.state_dict().values():
                kept.add_(torch.randn(kept.shape).to(kept.dtype))
        eager.average.update_parameters(eager.model)
        assert update(ours.model) is None
        expected = eager.average.state_dict()
        for key, found in ours.average.state_dict().items():
            torch.testing.assert_close(found, expected[key], rtol=1e-4, atol=1e-6)
    assert (breaks_of(update), compiles_of(update)) == ([], 1)


def test_an_average_that_counts_breaks_and_is_right() -> None:
    calls: list[int] = []

    def average(mean: Tensor, new: Tensor, count: Tensor) -> Tensor:
        calls.append(1)
        return mean * 0.5 + new * 0.5

    compiled = compare("aot_eager", avg_fn=average)
    assert len(calls) == 2 * 4 * 6  # two trainings, four updates behind the first, six parameters
    assert breaks_of(compiled)
