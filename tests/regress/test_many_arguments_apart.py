"""Snapshots of calls with many tensors of which one is written to: each has to stay another one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import braze


@pytest.mark.parametrize("count", [8, 9, 16, 17])
def test_tensors_that_stay_apart(count: int) -> None:
    names = ", ".join(f"x{n}" for n in range(count))
    space: dict[str, object] = {}
    exec(f"def add({names}):\n    x0.add_(1)\n    return {names.replace(',', ' +')}", space)
    compiled = braze.compile(space["add"])  # type: ignore[call-overload]
    for _ in range(5):
        given = [torch.randn(3) for _ in range(count)]
        expected = sum(given, torch.ones(3))
        torch.testing.assert_close(compiled(*given), expected)
    same = torch.ones(3)
    found: Tensor = compiled(*[same] * count)
    assert torch.equal(found, torch.full((3,), 2.0 * count))
