"""`torch.autograd.backward` of no tensors ended in an internal error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import braze

ERRORS = (TypeError, RuntimeError, AttributeError, AssertionError)


@pytest.mark.parametrize("handles", [False, True])
@pytest.mark.parametrize("given", [None, (), [], [None]])
def test_backward_of_nothing(given: Any, handles: bool) -> None:
    def program(x: Tensor) -> Any:
        y = x * 2
        if not handles:
            torch.autograd.backward(given)
            return y, ""
        try:
            torch.autograd.backward(given)
        except ERRORS as error:
            return y, str(error)
        return y, ""

    found: list[Any] = []
    for function in (program, braze.compile(program)):
        try:
            y, text = function(torch.ones(3))
            found.append((y.tolist(), text))
        except ERRORS as error:
            found.append((type(error), str(error)))
    assert found[0] == found[1]
    codes = {why.code for why in braze.status()[-1].left_to_eager}
    assert not codes & {"internal-error", "raised-in-capture-only"}
