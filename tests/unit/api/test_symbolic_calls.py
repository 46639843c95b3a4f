"""What symbolic sizes cost in a compile, as what does not depend on the machine: how many Python
functions are called beyond those of a compile with the sizes at hand, for each node of the graph.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import braze
from braze.trace import Journal


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.project, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.project(self.norm(x)).split(width, dim=2)
        query, key, value = (p.view(batch, length, 4, -1).transpose(1, 2) for p in parts)
        made = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        made = made.transpose(1, 2).contiguous().reshape(batch, length, width)
        return x + functional.gelu(self.out(made))


def images() -> tuple[nn.Module, torch.Tensor]:
    layers = [
        nn.Sequential(nn.Conv2d(4, 4, 3, stride=1 + n % 2, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        for n in range(6)
    ]
    return nn.Sequential(*layers).eval(), torch.randn(2, 4, 32, 48)


def tokens() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*[Attention() for _ in range(4)]).eval(), torch.randn(2, 16, 32)


def calls_of(model: nn.Module, dynamic: bool, x: torch.Tensor, journal: Journal) -> tuple[int, int]:
    """Calls of Python functions in a first call, of which nothing is done for the first time, and
    the nodes of its graph."""
    counted, nodes = 0, 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event == "call"

    for is_counted in (False, True):
        compiled = braze.compile(model, dynamic=dynamic, backend="aot_eager")
        gc.collect()
        gc.disable()
        before = sys.getprofile()
        sys.setprofile(count if is_counted else before)
        try:
            compiled(x)
        finally:
            sys.setprofile(before)
            gc.enable()
        nodes = len(journal.records()[-1].ops)
        assert not journal.fallbacks()
        braze.reset()
    return counted, nodes


@pytest.mark.parametrize("make, most", [(images, 560), (tokens, 90)])
def test_python_calls_of_symbols(journal: Journal, make: Any, most: int) -> None:
    model, x = make()
    with torch.no_grad():
        static, nodes = calls_of(model, False, x, journal)
        symbolic, as_many = calls_of(model, True, x, journal)
    assert nodes == as_many >= 18
    assert symbolic - static < most * nodes, ((symbolic - static) / nodes, static / nodes)
