"""A kernel over no rows divided by their number to find its first task."""

from __future__ import annotations

import torch

import braze


def test_rows_of_size_zero() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x > 0, x > 1], 1)

    x = torch.randn(0, 7, 1, 300)
    assert torch.equal(braze.compile(function)(x), function(x))
