"""Pairs of numbers that are read and written by statements of their own, interpreted."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from braze.schedule import CUDA
from tests.unit.codegen.triton_running import MARKS, check, generated, planned

pytestmark = MARKS

Tensor = torch.Tensor


def _turned(x: Tensor, by: Tensor) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = by[..., 0::2], by[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def _swapped(x: Tensor, by: Tensor) -> Tensor:
    return torch.stack([x[..., 1::2] + 1, x[..., 0::2] - by[..., 0::2]], -1)


def _first_alone(x: Tensor, by: Tensor) -> Tensor:
    return x[..., 0::2] * 2 + by[..., 0::2]


def _odd_pairs(x: Tensor, by: Tensor) -> Tensor:
    return x[..., 1:-1:2] * x[..., 2::2] + by[..., 2::2]


def _padded(x: Tensor, by: Tensor) -> Tensor:
    wide = torch.nn.functional.pad(x, (2, 2))
    return wide[..., 0::2] * wide[..., 1::2] + by[..., :1]


def _written_over(x: Tensor, by: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[..., 0::2] = x[..., 0::2] + by[..., 0::2]
    out[..., 1::2] = out[..., 0::2] * 2
    return out


def _of_four(x: Tensor, by: Tensor) -> Tensor:
    parts = [x[..., n::4] for n in range(4)]
    return torch.stack([parts[3], parts[0], parts[1] * 2, parts[2] - 1], -1) + by[..., :1, None]


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "turned": _turned,
    "swapped": _swapped,
    "first alone": _first_alone,
    "odd pairs": _odd_pairs,
    "padded": _padded,
    "written over": _written_over,
    "of four": _of_four,
}
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
SHAPES = ((3, 64), (257, 12), (5, 7, 100))


@pytest.mark.parametrize(("name", "dtype"), itertools.product(PROGRAMS, DTYPES))
def test_values(name: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x, by = torch.randn(shape, dtype=dtype), torch.randn(shape[-1], dtype=dtype)
        program, _, inputs = planned(PROGRAMS[name], [x, by], CUDA)
        check(program, inputs)


def test_both_are_moved_at_once() -> None:
    def text(function: Callable[[Tensor, Tensor], Tensor]) -> str:
        program, _, _ = planned(function, [torch.randn(512, 64), torch.randn(64)], CUDA)
        _, sources = generated(program)
        (launch,) = [one for step in sources.launches for one in step]
        return launch.function.text.split("def k_")[1]

    turned = text(_turned)
    assert turned.count("tl.load") == 2 and turned.count("bz_store_both") == 1
    assert "tl.store" not in turned
    assert "bz_" not in text(_first_alone) and "bz_" not in text(_odd_pairs)
