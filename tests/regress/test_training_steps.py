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


@pytest.mark.filterwarnings("ignore:Error detected in")
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


def test_gradients_are_no_views() -> None:
    def step(training: Training, x: torch.Tensor) -> list[torch.Tensor | None]:
        training.loss(x).backward()
        return [p.grad for p in training.model.parameters()]

    training = Training()
    kept = braze.compile(step, backend="aot_eager")(training, torch.randn(4, 6))
    for p, gradient in zip(training.model.parameters(), kept):
        assert p.grad is gradient and p.grad is not None and not p.grad._is_view()
        p.grad.detach_().zero_()  # as optimizers did before they set gradients to None


# --- counts of the program's own -----------------------------------------------------------------


def power(count: int) -> float:
    return 0.1 * 0.9**count


def cosine(count: int) -> float:
    return 0.05 * (1 + math.cos(math.pi * count / 20))


def warm(count: int) -> float:
    return 0.1 * min(1.0, (count + 1) / 20)


@pytest.mark.parametrize("rate", [power, cosine, warm])
@pytest.mark.parametrize("before", [True, False])
def test_a_schedule_by_a_count_is_compiled_twice(
    rate: Callable[[int], float], before: bool
) -> None:
    def step(training: Training, x: torch.Tensor) -> torch.Tensor:
        loss = training.step(x) if before else None
        training.count += 1
        for group in training.optimizer.param_groups:
            group["lr"] = rate(training.count)
        return training.step(x) if loss is None else loss

    assert check(step, count=6) == ["graph", "graph"]


class Halved(optim.lr_scheduler.LRScheduler):
    def get_lr(self) -> Any:
        return [rate * 0.5**self.last_epoch for rate in self.base_lrs]


def test_a_schedule_of_the_programs_own_class_is_compiled_twice() -> None:
    class Scheduled(Training):
        def __init__(self) -> None:
            super().__init__()
            self.schedule = Halved(self.optimizer)

    def step(training: Any, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = training.step(x)
        training.schedule.step()
        return loss

    assert check(step, Scheduled, count=5) == ["graph", "graph"]


USES: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "factor": lambda x, n: x * n,
    "size": lambda x, n: torch.ones(n, 6).sum() + x,
    "size of one row": lambda x, n: torch.ones(n, 6) + x[:1],
    "broadcast": lambda x, n: torch.ones(n, 1).expand(n, 6) * x[0],
    "squeezed": lambda x, n: torch.ones(n, 6).squeeze(),
    "slice": lambda x, n: x[:n],
    "slice squeezed": lambda x, n: x[:n].squeeze(),
    "index": lambda x, n: x[n % 4],
    "repeated": lambda x, n: x.repeat(n, 1),
    "range": lambda x, n: sum((x * k for k in range(n)), x),
    "numbers": lambda x, n: torch.arange(n) * 2,
    "less one": lambda x, n: torch.ones(n - 1) if n else x,
    "power": lambda x, n: x**n,
    "branch": lambda x, n: x.sin() if n == 1 else x.cos(),
    "text": lambda x, n: x + len(f"{n} steps"),
    "view": lambda x, n: x.repeat(n + 1, 1).view(n + 1, -1).mean(0),
    "root": lambda x, n: x / math.sqrt(n) if n else x,
    "tensor": lambda x, n: torch.tensor(n) + x,
    "full": lambda x, n: torch.full((2,), n),
    "matrix": lambda x, n: torch.ones(3, n) @ torch.ones(n, 2),
}


class Counter:
    def __init__(self, count: int) -> None:
        self.count = count


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("first", [-1, 0])
def test_a_count_from_its_second_value_on(name: str, first: int) -> None:
    use = USES[name]

    def step(counter: Counter, x: torch.Tensor) -> Any:
        result = use(x, abs(counter.count))
        counter.count += 1
        return result

    ours, eager = Counter(first), Counter(first)
    compiled = braze.compile(step, backend="aot_eager", options={"recompile_limit": 32})
    JOURNAL.clear()
    torch.manual_seed(0)
    for _ in range(6):
        x = torch.randn(4, 6)
        found, expected = compiled(ours, x), step(eager, x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    assert ours.count == eager.count
    assert not JOURNAL.fallbacks()
