"""Writes through `.data` of the pieces that iterating a parameter gives, with breaks between them:
the version of the parameter does not change, so its pieces stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def in_a_loop(x: torch.Tensor) -> list[Any]:
    made = []
    for number, row in enumerate(x):
        row.data.mul_(2.0)
        made.append((row + number).detach())
    return made


def with_breaks(x: torch.Tensor) -> list[Any]:
    made = []
    for number, row in enumerate(x):
        row.data.mul_(2.0)
        braze.graph_break()
        made.append((row + number).detach())
    return made


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("program", [in_a_loop, with_breaks])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
def test_each_piece_is_written_to(
    backend: str, program: Callable[[torch.Tensor], list[Any]], gradients: bool
) -> None:
    x, y = (torch.arange(1.0, 4.0, requires_grad=gradients) for _ in range(2))
    found, expected = braze.compile(program, backend=backend)(x), program(y)
    assert all(map(torch.equal, found, expected))
    assert torch.equal(x.detach(), y.detach())
    assert x._version == y._version
