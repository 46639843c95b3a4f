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
from tests.fuzz.program import Program
from tests.fuzz.state import first_difference
from tests.fuzz.world import run_world

SECONDS = 20


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
    """Run a program both ways."""
    options: dict[str, Any] = {"suppress_errors": False}
    compile = functools.partial(braze.compile, backend=program.backend, options=options)
    with _time_limit():
        expected = run_world(program, None)
    try:
        with _time_limit():
            actual = run_world(program, compile)
    except (Exception, TimedOut) as error:
        text = "".join(traceback.format_exception(error))
        return Difference("crash", -1, text, _without_names(text.strip().splitlines()[-1]))
    finally:
        braze.reset()
    for number, (left, right) in enumerate(zip(expected, actual, strict=True)):
        if left.is_refused_by_autograd:
            return None
        parted = first_difference(left.state, right.state)
        if parted is not None:
            return Difference("state", number, parted.text, parted.cause)
        if right.faults and not right.raised:
            return Difference("fault", number, right.faults[0], _without_names(right.faults[0]))
    return None


def _without_names(text: str) -> str:
    return re.sub(r"'[^']*'|[\d.]+|<.*?>:|:\w+:", "", text)[:80]


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(signum: int, frame: Any) -> None:
        raise TimedOut(f"no end after {SECONDS} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
