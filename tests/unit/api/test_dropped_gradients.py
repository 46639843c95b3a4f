"""Old gradients that a step drops at its start are gone when its graph runs, as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.trace import JOURNAL

SEEN: list[bool] = []
WATCHED: list[nn.Parameter] = []


@torch.library.custom_op("braze_dropped_gradients::look", mutates_args=())
def look(x: torch.Tensor) -> torch.Tensor:
    """A copy; notes whether the watched parameter has a gradient."""
    SEEN.append(WATCHED[-1].grad is not None)
    return x.clone()


@look.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def fresh() -> Any:
    SEEN.clear()
    yield
    SEEN.clear()
    WATCHED.clear()


def first(model: nn.Module, optimizer: Any, x: torch.Tensor) -> Any:
    optimizer.zero_grad()
    model(look(x)).square().mean().backward()
    optimizer.step()


def after_forward(model: nn.Module, optimizer: Any, x: torch.Tensor) -> Any:
    loss = model(look(x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def keeping(model: nn.Module, optimizer: Any, x: torch.Tensor) -> Any:
    old = [p.grad for p in model.parameters()]
    optimizer.zero_grad()
    model(look(x)).square().mean().backward()
    optimizer.step()
    return old


def reading(model: nn.Module, optimizer: Any, x: torch.Tensor) -> Any:
    old = [p.grad for p in model.parameters()]
    optimizer.zero_grad()
    model(look(x)).square().mean().backward()
    optimizer.step()
    return [None if g is None else g.sum() for g in old]


def run(step: Callable[..., Any], compiled: bool) -> tuple[Any, ...]:
    """Results, gradients and parameters of four steps, and whether gradients were seen."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    WATCHED.append(model.weight)
    call = braze.compile(step, fullgraph=True) if compiled else step
    SEEN.clear()
    results = []
    for _ in range(4):
        result = copy.deepcopy(call(model, optimizer, torch.randn(5, 4)))
        results.append((result, [p.grad.clone() for p in model.parameters()]))
    return results, [p.detach() for p in model.parameters()], list(SEEN)


@pytest.mark.parametrize("step", [first, after_forward, keeping, reading])
def test_old_gradients(step: Callable[..., Any]) -> None:
    expected, parameters, seen = run(step, compiled=False)
    JOURNAL.clear()
    found, ours, ours_seen = run(step, compiled=True)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours, parameters)
    assert ours_seen == (seen if step in (first, after_forward) else [False, True, True, True])
    assert not JOURNAL.fallbacks()


def raises_after(model: nn.Module, optimizer: Any, index: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(index).square().mean().backward()
    optimizer.step()


def raises_before(model: nn.Module, optimizer: Any, index: torch.Tensor) -> None:
    loss = model(index).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("step", [raises_after, raises_before])
def test_a_fault_leaves_what_eager_leaves(step: Callable[..., Any]) -> None:
    gradients = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        call = braze.compile(step, fullgraph=True) if compiled else step
        for _ in range(3):
            call(model, optimizer, torch.tensor([0, 3]))
        with pytest.raises(IndexError):
            call(model, optimizer, torch.tensor([0, 9]))
        gradients.append(model.weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
    assert (gradients[1] is None) == (step is raises_after)
