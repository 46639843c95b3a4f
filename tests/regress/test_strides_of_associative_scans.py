"""Results of `associative_scan` lay in memory as its input does, not as eager's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan

import braze

SHAPES = [(3, 4), (2, 3, 4), (2, 5, 3, 4), (4, 1, 3), (3, 2)]
CASES = [(shape, dim) for shape in SHAPES for dim in range(len(shape))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(("shape", "dim"), CASES)
def test_strides(shape: tuple[int, ...], dim: int, is_turned: bool, reverse: bool) -> None:
    def program(x: Tensor) -> Tensor:
        made: Tensor = associative_scan(torch.add, x, dim, reverse, combine_mode="generic")
        return made

    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    if is_turned:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    expected, found = program(x), braze.compile(program, fullgraph=True)(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
