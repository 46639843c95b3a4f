"""An operator called with numbers only makes a tensor: the shape rule found no device and failed,
and the frame ran natively from there."""

from __future__ import annotations

import pytest
import torch

import braze


@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
def test_division_of_two_numbers(mode: str | None) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * (torch.div(x.size(1), 4, rounding_mode=mode) - 1)

    x = torch.randn(2, 30)
    explanation = braze.explain(scaled)(x)
    torch.testing.assert_close(explanation.result, scaled(x))
    assert (explanation.graph_count, explanation.break_count) == (1, 0)
    assert not explanation.fallbacks
