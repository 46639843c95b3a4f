"""Work that records no operators: where its capture would take long, it runs natively instead.

An interpreted instruction takes a hundred times as long as a native one, and an attribute that was
read once is remembered: a loop that waits for another thread to write to it has no end while it is
captured. So the instructions since the last operator are counted, and beyond the option
`idle_limit` the graph breaks:

    a loop that began to turn since then    the rest of its frame runs natively
    a call of a function that calls itself  that call runs natively
    any other call                          it has a capture of its own, or runs natively
    C code that calls the program           that instruction is executed

The outermost of them is taken. A frame whose instructions are more than `_MOST` times as many in
all, operators between them, has its outermost loop cut into turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

from braze.capture.frames.control_signals import BreakRequested, LoopTooLong
from braze.capture.frames.frame import Frame
from braze.compat.python.code_objects import entry_offset

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_MOST = 40
_LARGE = 256
_SIZED = frozenset({list, tuple, dict, set, frozenset})
UNLIMITED = 1 << 62


@final
class IdleWork:
    """What one attempt has interpreted since the last operator.

    due: the step at which to look whether there was an operator, or sooner.
    since: no operator was recorded from this step on, as far as is known.
    progress: what was recorded then.
    """

    __slots__ = ("due", "limit", "progress", "since")

    def __init__(self, limit: int) -> None:
        self.limit = self.due = limit
        self.since = 0
        self.progress: Any = None

    def note_walk(self, values: Sequence[Any]) -> None:
        """The items of large containers among these are looked at, each in the sixteenth part of
        the time that an instruction takes: a loop that does so at each turn is long sooner."""
        for value in values:
            if type(value) in _SIZED and len(value) > _LARGE:
                self.due -= len(value) // 16


def check_idle(interpreter: Interpreter) -> None:
    """As many instructions as `idle_limit` were interpreted since this was asked. BreakRequested
    where none of them recorded an operator, LoopTooLong where there are far too many in all."""
    idle: IdleWork = interpreter.idle
    progress = interpreter.tracer.recorder.progress
    limit, step = idle.limit, interpreter.steps_done
    if progress == idle.progress:
        raise _leave(interpreter, f"{step - idle.since} instructions and no operator among them")
    if step > _MOST * limit:
        loop = _outermost_loop(interpreter)
        if loop is not None and loop not in interpreter.request.long_loops:
            raise LoopTooLong(loop)
        idle.since = 0
        raise _leave(interpreter, f"{step} instructions")
    idle.progress, idle.since, idle.due = progress, step, step + limit


def _leave(interpreter: Interpreter, text: str) -> BreakRequested:
    since = interpreter.idle.since
    frames = list(_resumable(interpreter.frames))
    for frame in frames:
        began = [first for _, _, first in frame.turns.values() if first >= since]
        if began:
            return _request(frame, text, max(began), natively=True)
    for frame in frames[1:]:
        if frame.call_step >= since:
            calls_itself = sum(other.code is frame.code for other in interpreter.frames) > 1
            first = frame.call_step + (1 + _steps_of_entry(frame) if calls_itself else 0)
            return _request(frame, text, first, natively=calls_itself)
    return _request(interpreter.frames[-1], text, interpreter.outer_step, natively=False)


def _request(frame: Frame, text: str, step: int, natively: bool) -> BreakRequested:
    request = BreakRequested("idle-work", f"{frame.code.co_qualname}, {text}")
    request.step, request.natively = step, natively
    return request


def _resumable(frames: list[Frame]) -> Iterator[Frame]:
    """The frames that can be rebuilt, outermost first: above them is what a nested loop runs."""
    for index, frame in enumerate(frames):
        if (index and frame.call_step < 0) or frame.generator is not None:
            return
        yield frame


def _steps_of_entry(frame: Frame) -> int:
    """How many instructions of a frame come before it can be entered."""
    entry = entry_offset(frame.code)
    return next(i for i, step in enumerate(frame.steps) if step[1].offset >= entry)


def _outermost_loop(interpreter: Interpreter) -> tuple[object, int] | None:
    """The code and the beginning of the outermost loop that turned more than once."""
    return next(
        (
            (frame.code, target)
            for frame in interpreter.frames
            for target in sorted(frame.turns)
            if frame.turns[target][0] > 1
        ),
        None,
    )
