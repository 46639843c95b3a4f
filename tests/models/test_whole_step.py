"""The eight models, each trained by one function: forward, loss, backward, optimizer, one graph.

At each of 20 steps, under a schedule, the loss differs from a float64 run by at most twice what
eager's does, or 1e-4 of it. Autocast's float64 run is one without autocast.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.models import EIGHT, Case, Size, build, find
from torch import optim

import braze
from braze.trace import Journal

Make = Callable[[Any], optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: optim.SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=1e-3),
}
QUICK = {("bert", "adamw"), ("resnet18", "sgd")}
STEPS = 20


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

    def run(self, step: Callable[..., torch.Tensor], name: str) -> list[float]:
        losses = []
        for number in range(STEPS):
            arguments, keywords = self.case.arguments(number % 4)
            if name == "resnet18":  # see test_training
                resize = torch.nn.functional.interpolate
                arguments = tuple(resize(a, scale_factor=2) for a in arguments)
            torch.manual_seed(number)
            losses.append(step(arguments, keywords).item())
            self.schedule.step()
        return losses


def cases() -> list[Any]:
    found = []
    for name in EIGHT:
        for kind in (*OPTIMIZERS, "autocast"):
            marks = [] if (name, kind) in QUICK else [pytest.mark.slow]
            found.append(pytest.param(name, kind, marks=marks, id=f"{name}-{kind}"))
    return found


@pytest.mark.parametrize(("name", "kind"), cases())
def test_twenty_steps(journal: Journal, name: str, kind: str) -> None:
    autocast = kind == "autocast"
    make = OPTIMIZERS["adamw" if autocast else kind]
    case, exact = (build(find(name), d, size=Size.TINY) for d in (torch.float32, torch.float64))
    eager = Training(case, case.model, make, autocast)
    ours = Training(case, copy.deepcopy(case.model), make, autocast)
    judge = Training(exact, copy.deepcopy(case.model).double(), make, False)
    compiled = braze.compile(ours.step, fullgraph=True)
    found = ours.run(compiled, name)
    records = journal.records()
    expected, right = eager.run(eager.step, name), judge.run(judge.step, name)
    # In half precision two runs drift apart by chance: at the worst step so far.
    worst = 0.0
    for number, (a, b, c) in enumerate(zip(found, expected, right, strict=True)):
        worst = max(worst, abs(b - c)) if autocast else abs(b - c)
        assert abs(a - c) <= max(2 * worst, 1e-4 * abs(c)), f"step {number}: {a}, {b}, {c}"
    for p, q in zip(ours.model.parameters(), eager.model.parameters(), strict=True):
        assert (p.grad is None) is (q.grad is None)
    assert [record.outcome for record in records] == ["graph", "graph"]
    assert not journal.fallbacks() and not any(record.fallbacks for record in records)
