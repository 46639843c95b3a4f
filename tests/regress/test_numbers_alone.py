"""An operator called with numbers only makes a tensor: the shape rule found no device and failed,
and the frame ran natively from there."""

from __future__ import annotations

import random

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


def test_numbers_that_stand_for_several_as_others_take_them() -> None:
    """Complex numbers and differences of truths raised TypeErrors of our own."""

    def program(x: torch.Tensor, n: int) -> tuple[torch.Tensor, complex, int]:
        drawn = random.randrange(100)
        return x + drawn, n * 1j + drawn * 2j, (drawn > 50) - (drawn < 50)

    compiled = braze.compile(program, backend="aot_eager", dynamic=True)
    x = torch.ones(2)
    for n in (3, 4, 5):
        random.seed(n)
        expected = program(x, n)
        random.seed(n)
        found = compiled(x, n)
        assert torch.equal(found[0], expected[0])
        assert found[1:] == expected[1:]
