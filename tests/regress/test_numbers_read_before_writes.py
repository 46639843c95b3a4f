"""A number that is read from a tensor stays what it was when the tensor is written to afterwards,
in every dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import braze

DTYPES = [torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.bool]


def whole(x: Tensor) -> Any:
    number = x.item()
    x.zero_()
    return number


def first(x: Tensor) -> Any:
    number = x[0].item()
    x.fill_(1)
    return number


def kept(x: Tensor) -> Any:
    held = {"n": [x.sum().item(), x.view(-1)[0].item()]}
    x.zero_()
    return held, x + 1


def written_by_a_view(x: Tensor) -> Any:
    number = x[1].item()
    x[1:].zero_()
    return number, x * 2


def behind_a_print(x: Tensor) -> Any:
    number = x[0].item()
    x.zero_()
    print(end="")
    x.fill_(1)
    return number


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("program", [whole, first, kept, written_by_a_view, behind_a_print])
def test_number_is_the_one_read(program: Callable[[Tensor], Any], dtype: torch.dtype) -> None:
    options = {"capture_scalar_outputs": True}
    for given in ({}, options):
        compiled = braze.compile(program, options=given)
        for _ in range(3):
            x = torch.tensor(3 if program is whole else [3, 1, 2]).to(dtype)
            y = x.clone()
            assert str(compiled(x)) == str(program(y))
            assert torch.equal(x, y)
