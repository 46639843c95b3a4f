"""Integers that change between calls, where one graph used to end in a fault of the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

PROGRAMS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "roll": lambda x, n: x.roll(n, 1) + 1,
    "roll of two": lambda x, n: x.roll((n, -n), (0, 1)) * 2,
    "roll and more": lambda x, n: x.roll((n, 1), (0, 0)) * 2,
    "roll of all": lambda x, n: torch.roll(x, n) * 2,
    "power by a modulus": lambda x, n: x * pow(n, 2, 13) + pow(3, n * n, 7),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_integers_change(name: str, dynamic: bool | None) -> None:
    program = PROGRAMS[name]
    compiled = braze.compile(
        lambda x, n: program(x, n), dynamic=dynamic, options={"suppress_errors": False}
    )
    x = torch.arange(12.0).view(3, 4)
    for number in (2, 3, -1, 9, 0, 2):
        torch.testing.assert_close(compiled(x, number), program(x, number), rtol=0, atol=0)
    row = braze.status()[-1]
    assert not row.calls_left and not row.breaks, str(braze.status())
