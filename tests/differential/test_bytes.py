"""Pointwise operators give the bytes of eager under numerics="eager": a part of bytes_sweep."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from tests.differential.bytes_sweep import (
    differences,
    of_several,
    pointwise,
    same_bytes,
    values,
)

_PART = (
    "clamp_min",
    "clamp_max",
    "nn.functional.relu",
    "nn.functional.relu6",
    "sub",
    "remainder",
    "sqrt",
    "gcd",
    "lcm",
)


@pytest.mark.parametrize("name", _PART)
def test_bytes_are_eagers(name: str) -> None:
    assert differences(pointwise()[name]) == []


@pytest.mark.parametrize("name", ["elu.default", "lerp.Scalar", "addcmul.default", "where.self"])
def test_bytes_of_operators_with_numbers(name: str) -> None:
    assert differences(of_several()[f"aten.{name}"]) == []


@pytest.mark.parametrize("number", [0, -0.0, 0.5])
def test_zero_keeps_its_sign_between_bounds(number: float) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        f = torch.nn.functional
        return [f.hardtanh(x, number, 3), f.hardtanh(x, -3, number), x.clamp(number, 1), x.relu()]

    x = values(torch.float32)
    made = braze.compile(program, options={"numerics": "eager"})(x)
    assert all(map(same_bytes, made, program(x)))


INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", [torch.gcd, torch.lcm])
def test_common_divisors_of_extremes(op: Any, dtype: torch.dtype) -> None:
    ends = torch.iinfo(dtype)
    numbers = {ends.min, ends.min + 1, ends.max, ends.max - 1, 0, 1, 2, 6, 64, 100}
    if ends.min:
        numbers |= {-1, -6}
    if ends.bits > 16:  # eager divides the least number by -1, which ends the process
        numbers -= {ends.min}
    pairs = torch.cartesian_prod(*[torch.tensor(sorted(numbers), dtype=dtype)] * 2)
    a, b = pairs.unbind(1)
    compiled = braze.compile(lambda a, b: op(a, b), options={"numerics": "eager"})
    assert torch.equal(compiled(a, b), op(a, b))


def test_sweep_sees_signs_of_zero() -> None:
    assert not same_bytes(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bytes(torch.tensor([float("nan")]), -torch.tensor([float("nan")]))
