"""Generators of the program that are given up half-way."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
import torch

import braze
from braze.capture.frames.generators import InlinedGenerator


def sums_rows(x: torch.Tensor) -> torch.Tensor:
    return sum((row * 2 for row in (x, x + 1)), start=x)


MAKING = InlinedGenerator.__init__.__code__
LINES = {line or 0 for _, _, line in MAKING.co_lines()} - {0, MAKING.co_firstlineno}


@pytest.mark.parametrize("line", sorted(LINES))
def test_an_interrupt_while_one_is_made_is_all_that_is_heard(
    line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code is not MAKING:
            return None
        if frame.f_lineno == line:
            raise KeyboardInterrupt
        return interrupt

    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    compiled = braze.compile(sums_rows, backend="aot_eager")
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            compiled(torch.ones(3))
    finally:
        sys.settrace(before)
    assert not unraisable
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 7.0))
