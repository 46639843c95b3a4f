"""A driver of open frames that fails at each step ends the call; it does not go on for ever."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from braze.runtime.resume import frame_driver


def _broken(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    braze.graph_break()
    return y * 2


def test_a_step_that_always_fails_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0

    def fail(*_: Any) -> Any:
        nonlocal steps
        steps += 1
        raise RuntimeError("the driver's own")

    monkeypatch.setattr(frame_driver, "_step", fail)
    with pytest.raises(RuntimeError, match="the driver's own"):
        braze.compile(_broken, backend="eager")(torch.ones(2))
    assert 1 < steps <= frame_driver._MOST_INTERRUPTS + 1
