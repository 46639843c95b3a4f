"""Objects with a `__del__` are made for real: each is finalized once, and only what was made is."""

from __future__ import annotations

import pytest
import torch

import braze


@pytest.mark.parametrize("made", ["called", "new"])
def test_each_object_is_finalized_once(made: str) -> None:
    log: list[float] = []

    class Noticed:
        value = 0.0

        def __del__(self) -> None:
            log.append(self.value)

    def program(x: torch.Tensor, keep: bool) -> object:
        one = Noticed() if made == "called" else object.__new__(Noticed)
        y = x * 2
        one.value = len(log)
        return (y + 1, one) if keep else y + 1

    compiled = braze.compile(program)
    x = torch.ones(2)
    for call in range(3):
        assert torch.equal(compiled(x, False), x * 2 + 1)
        assert log == list(range(call + 1))
    kept = compiled(x, True)
    assert len(log) == 3
    del kept
    assert len(log) == 4
