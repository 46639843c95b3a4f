"""A parameter made for the call, in the memory of an argument that is written to: the program that
was compiled for two that lie apart read what the parameter held before the write."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import braze


def _shift(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y += 3
    return x - 2


class _Box:
    def __init__(self, weight: nn.Parameter) -> None:
        self.weight = weight


def _shift_held(box: _Box, y: torch.Tensor) -> torch.Tensor:
    y += 3
    return box.weight - 2


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    ("function", "given"), [(_shift, nn.Parameter), (_shift_held, lambda x: _Box(nn.Parameter(x)))]
)
def test_of_arguments(
    backend: str, function: Callable[..., object], given: Callable[..., object]
) -> None:
    compiled = braze.compile(function, backend=backend)
    compiled(given(torch.zeros(2, 3)), torch.zeros(3))
    for row in (0, 1):
        x, z = torch.zeros(2, 3), torch.zeros(2, 3)
        assert torch.equal(compiled(given(x), x[row]), function(given(z), z[row]))
        assert torch.equal(x, z)
