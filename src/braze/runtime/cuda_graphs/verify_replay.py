"""Replays beside the call that they recorded, where `verify_replays` is set.

    a replay differs from the call that it recorded: its result 309, of step 260 (kernel k260), is
    another one; 12 of 310 are

The results that a forward saves are checked, too, so that the step that is named is the first one
that went wrong, or the first one whose result somebody wrote over since. Graphs that change their
inputs, take them over, or draw random numbers are not checked: they cannot be called twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from braze.errors import InternalError
from braze.ir.graphs.random_ops import draws
from braze.ir.kernels.loops import Buffer
from braze.ir.kernels.schedule import ExternStep, Schedule
from braze.runtime.launch.result_storage import buffers_of
from braze.runtime.link.link_cpu import CompiledGraph

# Calls of a graph that are checked: the first is not recorded, and new addresses are patched later.
_CHECKED = 4
# Of a result, beside its largest element: sums in another order differ, and atomic ones each time.
_TOLERANCE = 1e-2


def can_be_checked(schedule: Schedule) -> bool:
    """Whether a second call gives what the first one did."""
    calls = [step.call for step in schedule.steps if isinstance(step, ExternStep)]
    drawn = any(draws(call.op, call.args, call.kwargs) for call in calls)
    return not (drawn or schedule.mutations or schedule.in_place)


@final
class CheckedReplays:
    """made: the graph whose calls are recorded; plain: the graph as compiled."""

    __slots__ = ("_left", "_made", "_plain", "_steps", "_views", "text")

    def __init__(self, made: CompiledGraph, plain: CompiledGraph, schedule: Schedule) -> None:
        self._made, self._plain, self._left = made, plain, _CHECKED
        self._steps = _makers(schedule)
        self._views = schedule.outputs
        self.text = getattr(plain, "text", "")

    def __call__(self, inputs: Sequence[object]) -> list[torch.Tensor]:
        if not self._left:
            return self._made(inputs)
        self._left -= 1
        expected = self._plain(list(inputs))
        found = self._made(inputs)
        wrong = [n for n, pair in enumerate(zip(found, expected)) if _differs(*pair)]
        if wrong:
            first = min(wrong, key=lambda n: self._place(n)[0])
            _, what = self._place(first)
            problem = (
                f"a replay differs from the call that it recorded: its result {first}, of {what}, "
                f"is another one; {len(wrong)} of {len(found)} are"
            )
            raise InternalError("runtime", problem)
        return found

    def _place(self, number: int) -> tuple[int, str]:
        return self._steps.get(self._views[number].buffer, (-1, "an input"))


# --- private -------------------------------------------------------------------------------------


def _makers(schedule: Schedule) -> dict[Buffer, tuple[int, str]]:
    """The step that first touches each buffer but the inputs: its number, and in words."""
    found: dict[Buffer, tuple[int, str]] = {}
    given = {*schedule.inputs}
    for number, step in enumerate(schedule.steps):
        name = str(step.call.op) if isinstance(step, ExternStep) else f"kernel {step.name}"
        for buffer in buffers_of(step) - given:
            found.setdefault(buffer, (number, f"step {number} ({name})"))
    return found


def _differs(found: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    if found is None or expected is None:
        return found is not expected
    if not found.numel() or (found.dtype is torch.int64 and not found.dim()):
        return False  # seeds that attention without dropout leaves as it finds them
    if not (found.is_floating_point() or found.is_complex()):
        return not torch.equal(found, expected)
    wide = torch.complex128 if found.is_complex() else torch.float64
    a, b = found.to(wide), expected.to(wide)
    allowed = _TOLERANCE * float(b.abs().nan_to_num(0, 0, 0).max())
    return not torch.allclose(a, b, rtol=_TOLERANCE, atol=allowed, equal_nan=True)
