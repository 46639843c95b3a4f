"""What is called and timed: a model forward, forward and backward, or a whole training step.

One row of `WORKS` is one. Each makes, of a case and of a system's `compile`, a callable that takes
the model's arguments and returns what is compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import torch

from benchmarks.models import Case

# A model or function -> the same, compiled.
Compile: TypeAlias = Callable[[Any], Callable[..., Any]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """grad_mode: a name of `benchmarks.request.GRAD_MODES`, or None for the settings' own.

    changes_model: a call leaves the model (its gradients, parameters or statistics) other than it
        was, so that each system has a copy of its own.
    compiling_calls: the first so many calls are what a compile costs: where the first creates an
        optimizer's state, the second is another program.
    amplifies: what a call returns depends on the last bits of what came before it.
    make: (case, compile) -> what is called.
    """

    name: str
    title: str
    make: Callable[[Case, Compile], Callable[..., Any]]
    grad_mode: str | None = None
    changes_model: bool = False
    amplifies: bool = False
    compiling_calls: int = 1

    def case_for(self, case: Case) -> Case:
        """The case that one system works on."""
        return replace(case, model=copy.deepcopy(case.model)) if self.changes_model else case


def _forward(case: Case, compile_: Compile) -> Callable[..., Any]:
    return compile_(case.model)


def _backward(case: Case, compile_: Compile) -> Callable[..., Any]:
    model = case.model.train()
    forward = compile_(model)

    def call(*args: Any, **kwargs: Any) -> list[Any]:
        model.zero_grad()
        loss = case.loss(forward(*args, **kwargs))
        loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in model.parameters())]

    return call


def _step(case: Case, compile_: Compile) -> Callable[..., Any]:
    model = case.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(*args: Any, **kwargs: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = case.loss(model(*args, **kwargs))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return compile_(step)


WORKS: dict[str, Work] = {
    work.name: work
    for work in (
        Work("forward", "inference", _forward),
        Work("backward", "forward and backward", _backward, "grad", changes_model=True),
        Work(
            name="step",
            title="training steps with AdamW",
            make=_step,
            grad_mode="grad",
            changes_model=True,
            amplifies=True,
            compiling_calls=2,
        ),
    )
}
