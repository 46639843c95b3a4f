"""A symbolic size asked for as a symbolic float raised inside of the capture, so that the frame ran
natively: floats are not symbols, and the size is specialised instead."""

from __future__ import annotations

import torch

import braze
from braze.trace import JOURNAL


def test_a_size_as_a_symbolic_float() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sym_float(x.size(0))

    compiled = braze.compile(scaled, dynamic=True, fullgraph=True)
    JOURNAL.clear()
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), x * rows)
    assert not JOURNAL.fallbacks()
