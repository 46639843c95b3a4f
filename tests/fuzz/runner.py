"""Eager and compiled, side by side: the first difference of a program, if there is one."""

from __future__ import annotations

import functools
import re
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import braze
from tests.fuzz.program import Program, in_float64
from tests.fuzz.state import ROUNDED, Parted, first_difference
from tests.fuzz.world import CHANGED_KEYS, StepRecord, run_world

# A program takes milliseconds. One of millions of turns shows nothing but that capture reads Python
# slower than Python does: eager gets a tenth of what compiled gets.
SECONDS, PATIENCE = 20, 600
_USED_UP = "Trying to backward through the graph a second time"
_SECOND = "(create_graph=True)"


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """kind: "state", "fault" (the compiler failed and said so) or "crash"; step: which one.
    cause: the same for differences of the same kind."""

    kind: str
    step: int
    text: str
    cause: str

    def __str__(self) -> str:
        return f"{self.kind} at step {self.step}: {self.text}"


class TimedOut(BaseException):
    """A program ran longer than any should."""


def check(program: Program) -> Difference | None:
    """Run a program both ways: the first difference."""
    options: dict[str, Any] = {"suppress_errors": False, "mode": program.mode}
    compile = functools.partial(braze.compile, backend=program.backend, options=options)
    try:
        with time_limit(SECONDS / 10):
            expected = run_world(program, None)
    except TimedOut:  # in eager: it shows nothing
        return None
    try:
        with time_limit(SECONDS):
            actual = run_world(program, compile)
    except (Exception, TimedOut) as error:
        text = "".join(traceback.format_exception(error))
        last = text.strip().splitlines()[-1]
        return Difference("crash", -1, text, _without_names(last))
    finally:
        braze.reset()
    found = _compare(expected, actual, is_rough=program.is_rough)
    if found is not None and any(step.is_refused_as_leaf for step in expected):
        with time_limit(SECONDS):
            found = _compare(run_world(program, None, looking=True), actual)
    if found is not None and found.cause.endswith(ROUNDED):
        found = _judged(program, expected, actual, found)
    return found


def _judged(
    program: Program, expected: list[StepRecord], actual: list[StepRecord], found: Difference
) -> Difference | None:
    """The first difference that is more than rounding, by what the program gives in float64. A
    program that does not run so (it may mix dtypes) has no judge, and what was found stands."""
    with time_limit(SECONDS):
        try:
            exact = run_world(in_float64(program), None)
        except Exception:
            return found
    return _compare(expected, actual, exact)


def _compare(
    expected: list[StepRecord],
    actual: list[StepRecord],
    exact: list[StepRecord] | None = None,
    is_rough: bool = False,
) -> Difference | None:
    """The first difference. Where eager itself raises or not as it is looked at (`Refusals`),
    compiled is right if it does as eager does when looked at. Where both raise that, but not at the
    same write, compiled looked at some tensors (its guards do) and not at others: programs part
    there, since which write it is that eager refuses is an accident of what was printed before.
    exact: the judge of differences that may be rounding. is_rough: see `Program`."""
    for number, (left, right) in enumerate(zip(expected, actual, strict=True)):
        if left.refusal or right.refusal == CHANGED_KEYS or _is_limit(left, right):
            return None
        judge = None if exact is None else exact[number].state
        parted = first_difference(left.state, right.state, judge, is_rough)
        if parted is not None:
            if left.is_refused_as_leaf and right.is_refused_as_leaf:
                return None
            if _fails_half_way(left, right, parted):
                return None
            return Difference("state", number, _with_errors(parted, left, right), parted.cause)
        if right.faults and not right.error:
            return Difference("fault", number, right.faults[0], _without_names(right.faults[0]))
    return None


def _is_limit(left: StepRecord, right: StepRecord) -> bool:
    """Whether the programs part at second derivatives as README says: of what was written to, and
    of a history that the function used up itself."""
    is_twice = left.step.startswith("backward_twice(")
    return _SECOND in right.error or (is_twice and _USED_UP in left.error and not right.error)


def _with_errors(parted: Parted, left: StepRecord, right: StepRecord) -> str:
    """What differs first, and the errors if they do: these come last in a state, but where one
    side raised early, they say why the rest differs."""
    if left.error == right.error:
        return parted.text
    errors = left.error or "nothing", right.error or "nothing"
    return f"{parted.text}; eager raised {errors[0]}, compiled {errors[1]}"


def _fails_half_way(left: StepRecord, right: StepRecord, parted: Parted) -> bool:
    """Whether a backward that the engine ends with the same error left what differs. Of gradients
    leaves have theirs whose turn came before the error: which ones, is the order in which the
    engine happens to find nodes ready, and to it a graph is one node. Where a history that began
    outside of a function is used up, that shows when its graph has run (README, "Limits")."""
    if not left.error or left.error != right.error:
        return False
    is_backward = left.step.startswith(("backward(", "backward_twice(")) and parted.path.endswith(
        ".grad"
    )
    return is_backward or _USED_UP in left.error


def _without_names(text: str) -> str:
    return re.sub(r"'[^']*'|[\d.]+|<.*?>:|:\w+:", "", text)[:80]


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """By the processor's clock, since the process may have to wait for one; and by the wall's, for
    what waits without end. It raises each second until the block ends: Python only prints what is
    raised in a destructor or a weak reference's callback, and goes on."""

    def stop(signum: int, frame: Any) -> None:
        raise TimedOut(f"no end after {seconds} s of computing or {PATIENCE} s")

    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, PATIENCE),
    )
    previous = [signal.signal(number, stop) for number, _, _ in timers]
    for _, timer, first in timers:
        signal.setitimer(timer, first, 1.0)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, previous, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)
