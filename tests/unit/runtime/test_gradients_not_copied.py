"""A parameter takes the gradient that a compiled backward made: autograd copies one that something
else refers to, hundreds a step, and holds both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import braze

WIDTH, LAYERS = 16, 6
SMALL = 0.002  # MiB: a bucket for about two layers


pytestmark = pytest.mark.usefixtures("process_group")


class Layers(nn.Module):
    """results: what comes out, of the whole and of its first half."""

    def __init__(self, results: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last = _half(), _half()
        self.results = results

    def forward(self, x: torch.Tensor) -> Any:
        features = self.first(x)
        return self.results(self.last(features), features)


def _half() -> nn.Module:
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


RESULTS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "one": lambda y, features: y,
    "loss": lambda y, features: y.square().mean(),
    "two": lambda y, features: (y, features),
    "nested": lambda y, features: {"last": y, "hidden": [features, y * 2], "sum": features.sum()},
    "view": lambda y, features: (y.t(), features[1:]),
    "detached": lambda y, features: (y, features.detach()),
}


def _sum(results: Any) -> torch.Tensor:
    if isinstance(results, torch.Tensor):
        return results.square().sum() if results.requires_grad else torch.zeros(())
    parts = results.values() if isinstance(results, dict) else results
    return sum((_sum(part) for part in parts), torch.zeros(()))


def _copies(model: nn.Module) -> list[str]:
    """What autograd called to keep gradients in the parameters, behind three calls."""
    x = torch.randn(12, WIDTH)
    for _ in range(3):
        model.zero_grad()
        _sum(model(x)).backward()
    model.zero_grad()
    loss = _sum(model(x))
    with profile(activities=[ProfilerActivity.CPU]) as taken:
        loss.backward()
    events = [e for e in taken.events() if e.cpu_parent is not None]
    kept = [e.name for e in events if e.cpu_parent.name == "torch::autograd::AccumulateGrad"]
    return sorted(name for name in kept if "detach" not in name and "view" not in name)


@pytest.mark.parametrize("wrapped", (False, True), ids=("alone", "data_parallel"))
@pytest.mark.parametrize("results", RESULTS)
def test_gradients_are_taken_as_they_are(results: str, wrapped: bool) -> None:
    module = Layers(RESULTS[results])
    compiled: nn.Module = braze.compile(module, fullgraph=True)
    if wrapped:
        compiled = DistributedDataParallel(
            compiled, bucket_cap_mb=SMALL, gradient_as_bucket_view=False
        )
        eager: nn.Module = DistributedDataParallel(module, bucket_cap_mb=SMALL)
    else:
        eager = module
    assert _copies(compiled) == _copies(eager)
    assert all(p.grad is not None for p in module.parameters())
