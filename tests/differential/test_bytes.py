"""Pointwise operators give the bytes of eager under numerics="eager": a part of bytes_sweep."""

from __future__ import annotations

import pytest
import torch

import braze
from tests.differential.bytes_sweep import differences, pointwise, same_bytes, values

_PART = ("clamp_min", "clamp_max", "nn.functional.relu", "nn.functional.relu6", "sub", "remainder")


@pytest.mark.parametrize("name", _PART)
def test_bytes_are_eagers(name: str) -> None:
    assert differences(pointwise()[name]) == []


@pytest.mark.parametrize("number", [0, -0.0, 0.5])
def test_zero_keeps_its_sign_between_bounds(number: float) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        f = torch.nn.functional
        return [f.hardtanh(x, number, 3), f.hardtanh(x, -3, number), x.clamp(number, 1), x.relu()]

    x = values(torch.float32)
    made = braze.compile(program, options={"numerics": "eager"})(x)
    assert all(map(same_bytes, made, program(x)))


def test_sweep_sees_signs_of_zero() -> None:
    assert not same_bytes(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bytes(torch.tensor([float("nan")]), -torch.tensor([float("nan")]))
