"""The one place where the program's own code runs instead of what was compiled of it.

    leave_to_eager(tally, why, function, args, kwargs)

counts the call, writes a log line, tells the journal (`braze.explain`), warns once where it is for
good, and raises under `fullgraph=True`. `tests/architecture/test_eager_calls.py` finds every other
way out. A `Tally` has the counts of one compiled callable, which `braze.status()` shows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import sys
import types
import warnings
from array import array
from collections.abc import Callable, Mapping
from typing import Any, final

from braze.compat.python.frames import outside_place
from braze.compat.python.hidden_frames import hide_frames
from braze.compile_records import LeftToEager
from braze.errors import BrazeWarning, LeftToEagerError
from braze.runtime.autograd.checkpoint_calls import EagerRun, in_checkpoint
from braze.trace import FAULTS

_LOG = logging.getLogger("braze.eager_calls")
# A program may raise with another message at each call.
_MOST_REASONS = 64
_OTHER = LeftToEager("", "for other reasons", "", "", "")


@final
class CallCount:
    """A count to which threads add without a lock: `next` and an addition in C are one step each.

    add: adds one. cell: what C code (guard_entrance.cpp) adds to, as one signed 64-bit number.
    """

    __slots__ = ("_counter", "add", "cell")

    def __init__(self) -> None:
        self._counter = itertools.count()
        self.add = self._counter.__next__
        self.cell = array("q", [0])

    def clear(self) -> None:
        """Begin again; who holds this, or its cell, goes on adding."""
        self._counter = itertools.count()
        self.add = self._counter.__next__
        self.cell[0] = 0

    def __int__(self) -> int:
        # Read from its text, "count(5)": to ask `next` would count the question.
        return int(repr(self._counter)[6:-1]) + self.cell[0]


@final
class Tally:
    """What became of the calls of one compiled callable.

    fullgraph: a call left to eager is an error.
    record: is told of each call that is left to eager; the journal's `note_left`.
    calls: of the callable itself; inner: of functions that its frames call behind a break.
    broken: how often a call met a graph break. recompiles: compiles of a place that had an entry.
    last_recompile: why no entry served then.
    """

    __slots__ = (
        "_left",
        "_warned",
        "broken",
        "calls",
        "fullgraph",
        "inner",
        "last_recompile",
        "recompiles",
        "record",
    )

    def __init__(
        self, fullgraph: bool = False, record: Callable[[LeftToEager], None] | None = None
    ) -> None:
        self.fullgraph = fullgraph
        self.record = record
        self.calls, self.inner = CallCount(), CallCount()
        self.broken, self.recompiles = CallCount(), CallCount()
        self.clear()

    def clear(self) -> None:
        """All counts are zero, and what was warned of is warned of again."""
        for count in (self.calls, self.inner, self.broken, self.recompiles):
            count.clear()
        self.last_recompile = ""
        self._left: dict[LeftToEager, CallCount] = {}
        self._warned: set[tuple[str, str, str, bool]] = set()

    def left(self) -> Mapping[LeftToEager, int]:
        """How often each reason left a call to eager."""
        return {why: int(count) for why, count in list(self._left.items())}

    def note(self, why: LeftToEager) -> None:
        """A call is left to eager. Raises LeftToEagerError under fullgraph."""
        self._count(why)
        _LOG.info("%s", why.text, extra={"origin": why.origin, "artefact": "eager_calls"})
        if self.record is not None:
            self.record(why)
        if self.fullgraph and not (why.may_raise or why.is_asked_for):
            raise LeftToEagerError(why.reason, hint=why.hint, origin=why.origin, code=why.code)
        said = (why.code, why.origin, why.function, why.is_rest)
        if why.is_for_good and said not in self._warned:
            self._warned.add(said)
            _warn(why)

    def _count(self, why: LeftToEager) -> None:
        count = self._left.get(why)
        if count is None:
            known = why if len(self._left) < _MOST_REASONS else _OTHER
            count = self._left.setdefault(known, CallCount())
        count.add()


def leave_to_eager(
    tally: Tally,
    why: LeftToEager,
    function: types.FunctionType,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    place: EagerRun | None = None,
) -> object:
    """The result of `function(*args, **kwargs)` by the program's own code. place: of a frame's
    code whose rest the function is; None for a whole call."""
    way = place or EagerRun(function.__code__, 0)
    if not why.may_raise:
        tally.note(why)
        with in_checkpoint(way):
            return function(*args, **kwargs)
    watch = _Watch(why.raised)
    try:
        with in_checkpoint(way), watch:
            result = function(*args, **kwargs)
    except BaseException:
        tally.note(dataclasses.replace(why, is_for_good=False))
        raise
    tally.note(_after_return(why, watch.is_raised))
    return result


def shown_error(error: BaseException) -> str:
    """An exception as `LeftToEager.raised` has it."""
    return f"{type(error).__name__}: {error}"


# --- private ---------------------------------------------------------------------------------


@final
class _Watch:
    """Watches the program's own code for the exception that a graph raised: where an operator of
    the program raises the same, and the program handles it, nothing is wrong with the graph.

    A debugger that is at work is left alone: then nothing is seen.
    """

    __slots__ = ("_raised", "is_raised")

    def __init__(self, raised: str) -> None:
        self._raised = raised
        self.is_raised = False

    def __enter__(self) -> None:
        if self._raised and sys.gettrace() is None:
            sys.settrace(self._entered)

    def __exit__(self, *exception: object) -> None:
        if sys.gettrace() == self._entered:
            sys.settrace(None)

    def _entered(self, frame: types.FrameType, event: str, value: object) -> Any:
        if self.is_raised:
            return None
        frame.f_trace_lines = False
        return self._inside

    def _inside(self, frame: types.FrameType, event: str, value: Any) -> Callable[..., object]:
        if event == "exception" and not self.is_raised:
            with contextlib.suppress(Exception):  # the program's exceptions have texts of its own
                self.is_raised = shown_error(value[1]) == self._raised
        return self._inside


def _after_return(why: LeftToEager, is_raised: bool) -> LeftToEager:
    """Why, where eager returned although it was expected to raise. is_raised: the program did, and
    handled it."""
    if is_raised:
        return dataclasses.replace(
            why, code="check-failed", reason=f"the program handles {why.raised}", hint="",
            is_for_good=False, may_raise=False,
        )  # fmt: skip
    also = "; run eagerly, it does not raise" if why.returned in FAULTS else ""
    return dataclasses.replace(why, code=why.returned, reason=why.reason + also, may_raise=False)


def _warn(why: LeftToEager) -> None:
    """Warn at the user's line. Where a filter makes errors of all warnings, and not of BrazeWarning
    by name, it is logged: a program must not end that runs in eager."""
    text = f"{why}\n{why.hint}" if why.hint else str(why)
    file, line, module = outside_place()
    try:
        warnings.warn_explicit(text, BrazeWarning, file, line, module)
    except BrazeWarning:
        if any(_is_wanted(rule[0], rule[2]) for rule in warnings.filters):
            raise
        _LOG.warning("%s", text, extra={"origin": "", "artefact": "eager_calls"})


def _is_wanted(action: str, category: object) -> bool:
    """Whether a filter makes an error of this very kind of warnings."""
    return action == "error" and category is BrazeWarning


hide_frames(__name__)
