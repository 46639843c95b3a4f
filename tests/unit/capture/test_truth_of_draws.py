"""Comparisons of random numbers whose answer is known: layers dropped with a probability of 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import braze
from tests.recorded import recorded


class Dropped(nn.Module):
    """Layers as transformers' encoders have them; probability: of leaving one out."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.probability = probability

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.training and torch.rand([]) < self.probability:
                continue
            x = layer(x)
        return x


@pytest.mark.parametrize(("probability", "graphs"), [(0.0, 1), (1.0, 1), (0, 1)])
def test_layers_dropped_never_or_always(probability: float, graphs: int) -> None:
    model, x = Dropped(probability).train(), torch.randn(2, 4)
    torch.manual_seed(5)
    expected, state = model(x), torch.get_rng_state()
    with recorded() as journal:
        compiled = braze.compile(model, backend="eager", fullgraph=True)
    torch.manual_seed(5)
    assert torch.equal(compiled(x), expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(journal.records()) == graphs


def _below(limit: Any, dtype: torch.dtype = torch.float32) -> Any:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.rand((), dtype=dtype) < limit else x - 1

    return program


def test_what_may_be_either_breaks() -> None:
    for limit in (0.5, 1e-9, float("nan")):
        assert braze.explain(_below(limit))(torch.ones(2)).graph_count == 2
    # Rounded to so few digits, a random number may be 1.
    assert braze.explain(_below(1.0, torch.bfloat16))(torch.ones(2)).graph_count == 2
