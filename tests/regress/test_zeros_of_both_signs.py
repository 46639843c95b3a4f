"""Kernels that compute with 0.0 and with -0.0 compute two things."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.ir.kernels.loops import Literal


def program(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.clamp_min(0.0), x.clamp_min(-0.0), torch.where(x > 1, 0.0, x), x.copysign(-0.0)] + [
        torch.where(x > 1, number, x) for number in (-0.0, 0.0)
    ]


def test_zeros_of_both_signs_are_two_constants() -> None:
    x = torch.tensor([3.0, 0.0, -0.0, -2.0] * 9)
    for options in ({}, {"numerics": "eager"}):
        made = braze.compile(program, fullgraph=True, options=options)(x)
        for ours, eager in zip(made, program(x), strict=True):
            assert torch.equal(ours, eager)
            assert torch.equal(torch.signbit(ours), torch.signbit(eager))


def test_constants_are_equal_by_their_bits() -> None:
    half, single = torch.float16, torch.float32
    nan = Literal(float("nan"), single)
    assert (
        nan == Literal(float("nan") * 2, single) and len({nan, Literal(-float("nan"), single)}) == 1
    )
    assert Literal(0.0, single) != Literal(-0.0, single)
    assert Literal(1.0, single) == Literal(1.0, single) != Literal(1.0, half)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("limit", [0.0, -0.0])
def test_limits_of_zeros_are_eagers_bits(dtype: torch.dtype, limit: float) -> None:
    """Eager gives another zero in its vectors than behind them."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.maximum(x, y),
            torch.minimum(x, y),
            torch.clamp(x, y, y + 1),
            torch.clamp_min(x, torch.full_like(x, limit)),
            torch.clamp_max(x, y),
            x.clamp(limit, 1.0),
            torch.relu(x) * 2,
        )

    x = torch.tensor([0.0, -0.0] * 40 + [1.0, -1.0], dtype=dtype)
    y = torch.full_like(x, limit)
    compiled = braze.compile(program, fullgraph=True, options={"numerics": "eager"})
    for one, other in zip(program(x, y), compiled(x, y)):
        assert torch.equal(one, other) and torch.equal(torch.signbit(one), torch.signbit(other))
