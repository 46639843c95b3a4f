"""With `verify_replays`, replays are compared with the call that they recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from braze.errors import InternalError
from braze.ir.kernels.loops import ExternCall
from braze.ir.kernels.schedule import Schedule
from braze.runtime.cuda_graphs.verify_replay import CheckedReplays, can_be_checked
from braze.schedule import CUDA, schedule
from tests.unit.codegen.programs import buffer, program, view
from tests.unit.codegen.running import OPTIONS

MM = torch.ops.aten.mm.default


def _plan() -> Schedule:
    """p = x @ w; y = p @ w, both results."""
    x, w, p, y = (buffer(name, (4, 4)) for name in ("x", "w", "p", "y"))
    calls = [ExternCall(MM, (view(a), view(w)), (), (b,)) for a, b in ((x, p), (p, y))]
    return schedule(program([x, w], calls, [y, p]), OPTIONS, CUDA)


def _plain(inputs: Any) -> list[torch.Tensor]:
    x, w = inputs
    return [x @ w @ w, x @ w]


INPUTS = (torch.randn(4, 4), torch.randn(4, 4))


def test_what_agrees_is_given() -> None:
    checked = CheckedReplays(
        lambda inputs: [r * (1 + 1e-6) for r in _plain(inputs)], _plain, _plan()
    )
    for _ in range(6):
        torch.testing.assert_close(checked(INPUTS), _plain(INPUTS))


def test_the_first_step_that_went_wrong_is_named() -> None:
    checked = CheckedReplays(lambda inputs: [r * 1.5 for r in _plain(inputs)], _plain, _plan())
    with pytest.raises(InternalError, match=r"its result 1, of step 0 \(aten.mm.default\).*2 of 2"):
        checked(INPUTS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_compared(value: float) -> None:
    x = torch.full((4, 4), value)
    checked = CheckedReplays(_plain, _plain, _plan())
    checked((x, INPUTS[1]))
    wrong = CheckedReplays(lambda inputs: [torch.zeros(4, 4)] * 2, _plain, _plan())
    with pytest.raises(InternalError):
        wrong((x, INPUTS[1]))


def test_some_calls_are_checked() -> None:
    """Each takes twice as long; what differs later is not seen."""
    calls = []

    def plain(inputs: Any) -> list[torch.Tensor]:
        calls.append(inputs)
        return _plain(inputs)

    checked = CheckedReplays(_plain, plain, _plan())
    for _ in range(10):
        checked(INPUTS)
    assert len(calls) == 4


def test_what_cannot_be_called_twice_is_not_checked() -> None:
    plan = _plan()
    assert can_be_checked(plan)
    assert not can_be_checked(replace(plan, in_place=(plan.inputs[0],)))
    x, y = buffer("x", (4,)), buffer("y", (4,))
    draw = ExternCall(torch.ops.aten.bernoulli.default, (view(x),), (), (y,))
    assert not can_be_checked(schedule(program([x], [draw], [y]), OPTIONS, CUDA))
