"""Where both sides of a branch are made, a graph of torch's calls makes neither of them always."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import swa_utils

import braze


def _average(wrap: Callable[[Any], Any]) -> list[Any]:
    """Updates alone, of models and buffers that change in between."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    average = swa_utils.AveragedModel(model, use_buffers=True)
    update = wrap(average.update_parameters)
    seen: list[Any] = []
    for _ in range(3):
        update(model)
        seen += [x.detach().clone() for x in average.state_dict().values()]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
    return seen


def _scaled(wrap: Callable[[Any], Any]) -> list[Any]:
    """Steps alone, of which some are left out."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=1, foreach=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    step = wrap(lambda: scaler.step(optimizer))
    seen = []
    for factor in (1.0, float("inf"), 2.0, float("nan"), 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.unscale_(optimizer)
        step()
        scaler.update()
        seen += [weight.detach().clone(), torch.tensor(scaler.get_scale())]
    return seen


def _radam(wrap: Callable[[Any], Any]) -> list[Any]:
    """Steps of an optimizer that branches on a number of its state."""
    weight = nn.Parameter(torch.ones(3))
    step = wrap(torch.optim.RAdam([weight], lr=0.1).step)
    seen = []
    for count in range(8):
        weight.grad = torch.full((3,), 1.0 + count)
        step()
        seen.append(weight.detach().clone())
    return seen


@pytest.mark.parametrize("dynamic", [None, False])
@pytest.mark.parametrize("run", [_average, _scaled, _radam])
def test_conditional_writes(run: Callable[..., list[Any]], dynamic: bool | None) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, examples: Any) -> Any:
        graphs.append(graph)
        return graph

    actual = run(lambda f: braze.compile(f, backend=backend, dynamic=dynamic))
    torch.testing.assert_close(actual, run(lambda f: f))
    assert graphs
