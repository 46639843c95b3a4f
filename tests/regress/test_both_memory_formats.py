"""With sizes of one, strides can be contiguous and channels-last at once. Results came out in the
format that eager does not choose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import braze

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pad": lambda x: F.pad(x, (1, 1)),
    "cat": lambda x: torch.cat([x, x], 3),
    "group norm": lambda x: F.group_norm(x, 1),
    "batch norm": lambda x: F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])),
}
INPUTS = {
    "pooled": torch.linspace(0, 1, 10).view(2, 1, 1, 5).transpose(3, 1),
    "one channel": torch.linspace(0, 1, 24)
    .view(2, 1, 3, 4)
    .as_strided((2, 1, 3, 4), (12, 1, 4, 1)),
}


@pytest.mark.parametrize("x", INPUTS.values(), ids=list(INPUTS))
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
@pytest.mark.parametrize("dynamic", [False, True])
def test_strides(program: Callable[..., torch.Tensor], x: torch.Tensor, dynamic: bool) -> None:
    with torch.no_grad():
        expected, found = program(x), braze.compile(program, dynamic=dynamic)(x)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)
