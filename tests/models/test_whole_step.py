"""The eight models, each trained by one function: forward, loss, backward, optimizer, one graph.

At each of 20 steps, under a schedule, the loss differs from a float64 run by at most twice what
eager's does, or 1e-4 of it; so does each gradient at the first step, where all three runs
have the same parameters, and all gradients together at each. Autocast's float64 run is one without
autocast; in half precision, single gradients are not compared. The first step, which makes the
optimizer's state, is compiled like the others, though it would be left to eager. `make gradients`
compares those of all models, each trained in three ways; other runs compare those of two and train
each model once or twice.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from benchmarks.models import EIGHT, Case, Size, build, find
from torch import optim

import braze
from braze.trace import Journal
from tests.shares import due_today

Gradients = list[list[Any]]
Run = tuple[list[float], Gradients]  # the losses and the gradients of each step
Make = Callable[[Any], optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: optim.SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=1e-3),
}
QUICK = {("bert", "adamw"), ("resnet18", "sgd")}  # their gradients are compared everywhere
STEPS = 20
# Relative errors of inputs that an arithmetic rounds, and how many more draws of them are run.
ROUNDING = {False: 2.0**-24, True: 2.0**-9}  # with autocast: bfloat16
DRAWS = 5
ALL_GRADIENTS = os.environ.get("BRAZE_ALL_GRADIENTS") == "1"


class Training:
    """A model and all that trains it."""

    def __init__(self, case: Case, model: Any, make: Make, autocast: bool) -> None:
        self.case, self.model = case, model.train()
        self.optimizer = make(list(model.parameters()))
        self.schedule = optim.lr_scheduler.ExponentialLR(self.optimizer, 0.95)
        self.autocast = autocast

    def step(self, arguments: Any, keywords: Any) -> torch.Tensor:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if self.autocast else contextlib.nullcontext():
            loss = self.case.loss(self.model(*arguments, **keywords))
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, step: Callable[..., torch.Tensor], name: str, draw: int = 0) -> Run:
        """The losses, and the gradients of each step. draw: other than 0, images and parameters are
        a rounding away; tokens are what they are."""
        losses, gradients = [], []
        generator = torch.Generator().manual_seed(draw)
        size = ROUNDING[self.autocast] if draw else 0.0
        for parameter in self.model.parameters() if draw else ():
            parameter.data.copy_(_rounded(parameter.data, 2.0**-24, generator))
        for number in range(STEPS):
            arguments, keywords = self.case.arguments(number % 4)
            if name == "resnet18":  # see test_training
                resize = torch.nn.functional.interpolate
                arguments = tuple(resize(a, scale_factor=2) for a in arguments)
            if draw:
                arguments = tuple(_rounded(a, size, generator) for a in arguments)
            torch.manual_seed(number)
            losses.append(step(arguments, keywords).item())
            gradients.append([_copy(p.grad) for p in self.model.parameters()])
            self.schedule.step()
        return losses, gradients


def _rounded(value: Any, size: float, generator: torch.Generator) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    errors = torch.randint(-1, 2, value.shape, generator=generator)
    return value * (1 + size * errors)


def _copy(gradient: Any) -> Any:
    return None if gradient is None else gradient.double()


def error_of(found: list[Any], exact: list[Any]) -> float:
    """The distance of all gradients together."""
    pairs = [(a, b) for a, b in zip(found, exact, strict=True) if b is not None]
    return sum((a - b).square().sum().item() for a, b in pairs) ** 0.5


def ways(name: str) -> list[str]:
    """How a model is trained: the costly ones in one way each, all three among them."""
    if ALL_GRADIENTS:
        return [*OPTIMIZERS, "autocast"]
    alone = {"resnet18": "sgd", "densenet121": "adamw", "unet": "autocast"}
    plain = list(OPTIMIZERS)[EIGHT.index(name) % 2]
    return [alone[name]] if name in alone else [plain, "autocast"]


def cases() -> list[Any]:
    """Those of `QUICK`, and of the others each day another third."""
    pairs = [(name, kind) for name in EIGHT for kind in ways(name)]
    others = [
        pytest.param(*pair, marks=[pytest.mark.slow], id="-".join(pair))
        for pair in pairs
        if pair not in QUICK
    ]
    return [*sorted(QUICK), *due_today(others, 3)]


@pytest.mark.parametrize(("name", "kind"), cases())
def test_twenty_steps(journal: Journal, name: str, kind: str) -> None:
    autocast = kind == "autocast"
    make = OPTIMIZERS["adamw" if autocast else kind]
    case, exact = (build(find(name), d, size=Size.TINY) for d in (torch.float32, torch.float64))
    first = copy.deepcopy(case.model)
    eager = Training(case, case.model, make, autocast)
    ours = Training(case, copy.deepcopy(first), make, autocast)
    judge = Training(exact, copy.deepcopy(first).double(), make, False)
    compiled = braze.compile(ours.step, fullgraph=True, options={"single_use_limit": 1_000_000})
    found = ours.run(compiled, name)
    records = journal.records()
    runs = [eager.run(eager.step, name)]
    right = judge.run(judge.step, name)
    check = Check(autocast, ALL_GRADIENTS or (name, kind) in QUICK)
    if check.fault(found, runs, right):
        for draw in range(1, 1 + DRAWS):
            other = Training(case, copy.deepcopy(first), make, autocast)
            runs.append(other.run(other.step, name, draw))
    assert not check.fault(found, runs, right)
    for p, q in zip(ours.model.parameters(), eager.model.parameters(), strict=True):
        assert (p.grad is None) is (q.grad is None)
    assert [record.outcome for record in records] == ["graph", "graph"]
    assert not journal.fallbacks() and not any(record.fallbacks for record in records)


@dataclass(frozen=True)
class Check:
    """What is compared. gradients: those of each step too, and one by one those of the first, where
    they are not of half precision."""

    autocast: bool
    gradients: bool

    def fault(self, found: Run, runs: Sequence[Run], right: Run) -> str:
        """Where a run is farther from `right` than twice what the worst of `runs` is; "": nowhere.
        In half precision and in gradients runs drift apart by chance: at the worst step so far."""
        worst = 0.0
        for number, (a, c) in enumerate(zip(found[0], right[0], strict=True)):
            here = max(abs(losses[number] - c) for losses, _ in runs)
            worst = max(worst, here) if self.autocast else here
            if not abs(a - c) <= max(2 * worst, 1e-4 * abs(c)):
                return f"step {number}: loss {a}, not {c}; eager's are off by up to {worst}"
        return self._fault_of_gradients(found[1], [g for _, g in runs], right[1])

    def _fault_of_gradients(
        self, ours: Gradients, runs: Sequence[Gradients], exact: Gradients
    ) -> str:
        if not self.gradients:
            return ""
        worst = 0.0
        for number, (a, c) in enumerate(zip(ours, exact, strict=True)):
            eager = [run[number] for run in runs]
            assert [g is None for g in a] == [g is None for g in eager[0]]
            worst, norm = max(worst, *(error_of(b, c) for b in eager)), error_of([0.0] * len(c), c)
            error = error_of(a, c)
            if not error <= max(2 * worst, 1e-4 * norm):
                return f"step {number}: gradients {error} off, eager's {worst}, of {norm}"
        return "" if self.autocast else one_by_one(ours[0], [run[0] for run in runs], exact[0])


def one_by_one(ours: list[Any], runs: Sequence[list[Any]], exact: list[Any]) -> str:
    """The same of each parameter's gradient. What batch norm cancels all but rounding of is
    compared with the largest gradient."""
    largest = max(g.norm().item() for g in exact if g is not None)
    for index, (a, c) in enumerate(zip(ours, exact, strict=True)):
        if c is not None:
            error = (a - c).norm().item()
            allowed = 2 * max((run[index] - c).norm().item() for run in runs)
            floor = max(1e-4 * c.norm().item(), 1e-6 * largest)
            if not error <= max(allowed, floor):
                return f"parameter {index}: {error}, {allowed}"
    return ""
