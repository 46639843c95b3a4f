"""Floats that change from call to call. A symbolic size asked for as one raised inside of the
capture, so that the frame ran natively: it is specialised instead. A comparison with a number tied
the program to the float, which compiled again for each value: only the answer is guarded."""

from __future__ import annotations

import math

import pytest
import torch

import braze
from braze.trace import Journal


def test_a_size_as_a_symbolic_float(journal: Journal) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sym_float(x.size(0))

    compiled = braze.compile(scaled, dynamic=True, fullgraph=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), x * rows)
    assert not journal.fallbacks()


def test_a_float_that_is_compared() -> None:
    class Noisy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = 0.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.p and 0 < self.p <= 0.5:
                return x * self.p
            return x - self.p if self.p > 0.5 else x

    model, x = Noisy(), torch.randn(3, 4)
    # The first compile is for one float; then there is one for each way.
    limit = {"recompile_limit": 4}
    compiled = braze.compile(model, backend="aot_eager", fullgraph=True, options=limit)
    for p in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.05, 0.0, 2.5, 0.25, -1.0, -2.0):
        model.p = p
        torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=0)


def test_functions_of_a_float_that_changes(journal: Journal) -> None:
    """Each value compiled anew; of what takes every positive number, the sign alone is guarded."""

    def program(x: torch.Tensor, s: float) -> torch.Tensor:
        return x * math.sqrt(s) + math.log(s) - math.tanh(s)

    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    x = torch.ones(3)
    for s in (2.0, 3.0, 4.5, 0.25, 700.0):
        torch.testing.assert_close(compiled(x, s), program(x, s))
    assert len(journal.records()) == 2
    with pytest.raises(ValueError, match="math domain error"):
        compiled(x, -1.0)
    with pytest.raises(ValueError):
        compiled(x, 0.0)
    assert compiled(x, math.inf).isinf().all()
    assert not journal.fallbacks()


def test_a_sine_of_infinity_raises() -> None:
    compiled = braze.compile(lambda x, s: x * math.sin(s), backend="aot_eager")
    for s in (2.0, 3.0):
        compiled(torch.ones(2), s)
    with pytest.raises(ValueError):
        compiled(torch.ones(2), math.inf)
