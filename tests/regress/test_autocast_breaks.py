"""A graph break inside `torch.autocast`: the region is entered once and left once.

Each attempt to capture entered it for good, so autocast never forgot its casts of weights: code
that ran natively went on with the weights of before the optimizer's step.
"""

from __future__ import annotations

import torch

import braze
from braze.compat.torch.ambient_state import autocast_depth


def test_casts_of_weights_are_forgotten_after_the_region() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))

    @braze.disable
    def native(x: torch.Tensor) -> torch.Tensor:
        assert autocast_depth() == 1
        return torch.nn.functional.linear(x, weight)

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
            z = native(x)
            y = y * 2
        return y + z

    compiled, x = braze.compile(program), torch.ones(2, 2)
    for step in range(3):
        assert compiled(x)[0, 0] == 4 + 2 * 2**step
        assert autocast_depth() == 0
        with torch.no_grad():
            weight.mul_(2)


def test_inference_mode_is_left_when_a_capture_is_given_up() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            y = x + 1
            braze.graph_break()
            return y * 2

    compiled = braze.compile(program)
    for _ in range(2):
        result = compiled(torch.ones(2))
        assert result.is_inference() and torch.equal(result, torch.full((2,), 4.0))
        assert not torch.is_inference_mode_enabled()
