"""Kernels that compute with 0.0 and with -0.0 compute two things."""

from __future__ import annotations

import torch

import braze
from braze.ir.loops import Literal


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
