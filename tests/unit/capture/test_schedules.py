"""Schedules of learning rates that are stepped in the frame."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import lr_scheduler, swa_utils

import braze
from braze.errors import BrazeError
from tests.unit.capture.test_backward import breaks_of
from tests.unit.capture.test_whole_step import (
    OPTIMIZERS,
    Training,
    assert_same_state,
    compiles_of,
)

WARM = 0.95


def warmed_up(count: int) -> float:
    return (count + 1) / 6 if count < 5 else WARM**count


def cosine(count: int, *, total: int, cycles: float) -> float:
    if count < 4:
        return warmed_up(count)
    progress = float(count - 4) / float(max(1, total - 4))
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress)))


def decayed(every: int) -> Callable[[int], float]:
    def rate(count: int) -> float:
        found = 1.0
        for _ in range(count // every):
            found *= 0.9
        return found

    return rate


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [5, 9]),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 15),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5, 2),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 12),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 4, cycle_momentum=False),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)], [4]
    ),
    "chain": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)], o
    ),
    "averaging": lambda o: swa_utils.SWALR(o, 0.05, 6),
    "function": lambda o: lr_scheduler.LambdaLR(o, [warmed_up]),
    "factor": lambda o: lr_scheduler.MultiplicativeLR(o, lambda count: 0.9 if count % 3 else WARM),
    "partial": lambda o: lr_scheduler.LambdaLR(o, functools.partial(cosine, total=20, cycles=0.5)),
    "closure": lambda o: lr_scheduler.LambdaLR(o, decayed(3)),
    "scaled cycles": lambda o: lr_scheduler.CyclicLR(
        o, 0.01, 0.1, 4, cycle_momentum=False, scale_fn=lambda x: 1 / 2.0 ** (x - 1)
    ),
}
Step = Callable[["Scheduled", Tensor, Tensor], Any]


class Scheduled(Training):
    """A training whose compiled function is `whole`."""

    def __init__(self, schedule: Any, whole: Step | None = None, name: str = "momentum") -> None:
        super().__init__(OPTIMIZERS[name])
        self.schedule = schedule(self.optimizer)
        self.whole = whole

    def both(self, x: Tensor, y: Tensor) -> Any:
        if self.whole is not None:
            return self.whole(self, x, y)
        loss = self.step(x, y)
        self.schedule.step()
        return loss

    def train(self, step: Callable[..., Any], count: int) -> list[Any]:
        results = []
        for seed in range(count):
            torch.manual_seed(seed)
            results.append(step(torch.randn(8, 6), torch.randint(0, 3, (8,))))
        return results


def compare(
    schedule: Any,
    whole: Step | None = None,
    count: int = 8,
    name: str = "momentum",
    **options: Any,
) -> Any:
    """Train eagerly and compiled; gives the compiled function."""
    eager, ours = Scheduled(schedule, whole, name), Scheduled(schedule, whole, name)
    compiled = braze.compile(ours.both, backend="aot_eager", **options)
    for found, expected in zip(ours.train(compiled, count), eager.train(eager.both, count)):
        torch.testing.assert_close(found, expected)
    assert_same_state(ours, eager)
    found, expected = ours.schedule.state_dict(), eager.schedule.state_dict()
    assert repr(found) == repr(expected)
    return compiled


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_graph_whatever_the_count(name: str) -> None:
    compiled = compare(SCHEDULES[name], count=22)
    assert (breaks_of(compiled), compiles_of(compiled)) == ([], 2)


def test_a_plateau_takes_the_loss() -> None:
    def whole(training: Scheduled, x: Tensor, y: Tensor) -> Any:
        loss = training.step(x, y)
        training.schedule.step(loss)  # type: ignore[arg-type]
        training.optimizer.zero_grad()
        return loss

    def schedule(optimizer: Any) -> Any:
        return lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)

    compiled = compare(schedule, whole, 12)
    assert breaks_of(compiled) == []


def before(training: Scheduled, x: Tensor, y: Tensor) -> Any:
    loss = training.step(x, y)
    rate, count = training.optimizer.param_groups[0]["lr"], training.schedule.last_epoch
    training.schedule.step()
    return loss, rate, count


def after(training: Scheduled, x: Tensor, y: Tensor) -> Any:
    loss = training.step(x, y)
    training.schedule.step()
    return loss, training.schedule.get_last_lr()


def written(training: Scheduled, x: Tensor, y: Tensor) -> Any:
    loss = training.step(x, y)
    training.schedule.step()
    training.optimizer.param_groups[0]["lr"] *= 0.5
    return loss


def copied(training: Scheduled, x: Tensor, y: Tensor) -> Any:
    loss = training.step(x, y)
    training.schedule.step()
    return loss, dict(training.optimizer.param_groups[0])["lr"]


def twice(training: Scheduled, x: Tensor, y: Tensor) -> Any:
    losses = []
    for _ in range(2):
        losses.append(training.step(x, y))
        training.schedule.step()
    return losses


def test_momentum_that_changes_is_passed_to_the_graph() -> None:
    compiled = compare(SCHEDULES["one cycle"], count=22, name="adamw")
    assert (breaks_of(compiled), compiles_of(compiled)) == ([], 2)


@pytest.mark.parametrize("name", ["function", "one cycle", "sequence", "exponential"])
def test_steps_one_after_the_other(name: str) -> None:
    def stepped(training: Scheduled, x: Tensor, y: Tensor) -> Any:
        loss = training.step(x, y)
        training.schedule.step()
        training.schedule.step()
        return loss

    compiled = compare(SCHEDULES[name], stepped, 12)
    assert (breaks_of(compiled), compiles_of(compiled)) == ([], 2)


def test_two_schedules_of_one_optimizer() -> None:
    class Both:
        def __init__(self, optimizer: Any) -> None:
            self.first = lr_scheduler.LinearLR(optimizer, total_iters=7)
            self.second = lr_scheduler.LambdaLR(optimizer, warmed_up)

        def step(self) -> None:
            self.first.step()
            self.second.step()

        def state_dict(self) -> Any:
            return self.first.state_dict(), self.second.state_dict()

    compiled = compare(Both, count=12)
    assert (breaks_of(compiled), compiles_of(compiled)) == ([], 2)


def test_functions_that_do_more_than_compute_run_where_they_are_called() -> None:
    seen: list[Any] = []

    def noted(count: int) -> float:
        seen.append(count)
        return 0.9**count

    def stepped(training: Scheduled, x: Tensor, y: Tensor) -> Any:
        loss = training.step(x, y)
        training.schedule.step()
        seen.append("after")
        return loss

    def run(compiled: bool) -> list[Any]:
        seen.clear()
        training = Scheduled(lambda o: lr_scheduler.LambdaLR(o, noted), stepped)
        step = braze.compile(training.both, backend="aot_eager") if compiled else training.both
        training.train(step, 4)
        return list(seen)

    assert run(True) == run(False)


def test_a_function_whose_numbers_the_frame_changes_runs_before() -> None:
    def schedule(optimizer: Any) -> Any:
        factor = 0.5

        def rate(count: int) -> float:
            return factor**count

        def change(value: float) -> None:
            nonlocal factor
            factor = value

        made = lr_scheduler.LambdaLR(optimizer, rate)
        made.change = change  # type: ignore[attr-defined]
        return made

    def stepped(training: Scheduled, x: Tensor, y: Tensor) -> Any:
        loss = training.step(x, y)
        training.schedule.step()
        training.schedule.change(0.25)
        return loss

    training, eager = Scheduled(schedule, stepped), Scheduled(schedule, stepped)
    training.train(braze.compile(training.both, backend="aot_eager"), 3)
    eager.train(eager.both, 3)
    assert_same_state(training, eager)
    assert training.schedule.get_last_lr() == eager.schedule.get_last_lr()


@pytest.mark.parametrize("whole", [before, after, written, copied, twice])
def test_what_a_schedule_writes_is_read_in_order(whole: Step) -> None:
    compiled = compare(SCHEDULES["cosine"], whole)
    reason = "what CosineAnnealingLR.step() wrote is asked for, which is called behind the graph"
    assert set(breaks_of(compiled)) == (set() if whole is before else {reason})


def test_where_no_break_is_allowed_the_schedule_is_interpreted() -> None:
    compiled = compare(SCHEDULES["exponential"], after, fullgraph=True)
    assert compiles_of(compiled) <= 3


def test_the_end_of_a_schedule_raises() -> None:
    def guarded(training: Scheduled, x: Tensor, y: Tensor) -> Any:
        loss = training.step(x, y)
        try:
            training.schedule.step()
        except ValueError:
            return loss * 0
        return loss

    def short(optimizer: Any) -> Any:
        return lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4)

    compare(short, guarded, 6)
    training = Scheduled(short)
    compiled = braze.compile(training.both, backend="aot_eager")
    with pytest.raises(ValueError, match="Tried to step") as raised:
        training.train(compiled, 6)
    assert not isinstance(raised.value, BrazeError)


def test_a_schedule_of_the_program_s_is_interpreted() -> None:
    class Halved(lr_scheduler.LRScheduler):
        def get_lr(self) -> Any:
            return [rate * 0.5**self.last_epoch for rate in self.base_lrs]

    compare(Halved)
