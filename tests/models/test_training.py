"""The eight models in training mode: losses, gradients and buffers of two steps, judged by float64.

An error is at most twice eager's own, or 1e-4 of the norm, or 1e-6 of the largest gradient's norm:
some gradients are all but cancelled by the batch norm that follows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from benchmarks.models import EIGHT, Case, Size, build, find

import braze
from braze.trace import Journal


def step(model: Any, case: Case, number: int, scale: int) -> torch.Tensor:
    """The loss of one step, its gradients accumulated."""
    arguments, keywords = case.arguments(number)
    if scale > 1:
        arguments = tuple(torch.nn.functional.interpolate(a, scale_factor=scale) for a in arguments)
    torch.manual_seed(number)
    loss = case.loss(model(*arguments, **keywords))
    loss.backward()
    return loss.detach()


def check(name: str, found: Any, eager: Any, exact: Any, largest: float = 0.0) -> None:
    assert (found is None) == (eager is None), name
    if found is None:
        return
    norm = exact.norm().item()
    error = (found.double() - exact).norm().item()
    allowed = 2 * (eager.double() - exact).norm().item() + 1e-4 * norm
    allowed += 1e-6 * largest
    assert error <= allowed, f"{name}: {error} of {norm}, eager's error allows {allowed}"


def states(model: torch.nn.Module) -> Iterable[tuple[str, Any]]:
    """Gradients and buffers by name."""
    for name, parameter in model.named_parameters():
        yield f"gradient of {name}", parameter.grad
    for name, buffer in model.named_buffers():
        yield name, buffer if buffer.is_floating_point() else buffer.double()


@pytest.mark.parametrize("name", EIGHT)
def test_two_steps(journal: Journal, name: str) -> None:
    # Batch norm over the two pixels that the tiny images leave of themselves is ill-conditioned.
    scale = 2 if name == "resnet18" else 1
    case, exact = (build(find(name), d, size=Size.TINY) for d in (torch.float32, torch.float64))
    model = case.model.train()
    twin, judge = copy.deepcopy(model), copy.deepcopy(model).double()
    compiled = braze.compile(twin, fullgraph=True)
    for number in range(2):
        loss = step(model, case, number, scale)
        found = step(compiled, case, number, scale)
        check("loss", found, loss, step(judge, exact, number, scale))
    largest = max(p.grad.norm().item() for p in judge.parameters() if p.grad is not None)
    for (what, a), (_, b), (_, c) in zip(states(twin), states(model), states(judge), strict=True):
        check(what, a, b, c, largest)
    records = journal.records()
    assert [record.outcome for record in records] == ["graph", "backward"]
    assert not journal.fallbacks() and not any(record.fallbacks for record in records)
