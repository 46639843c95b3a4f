"""Loops of so many turns that a graph of all of them would take minutes to compile.

A loop is unrolled: its turns are in one graph, side by side. Where that would be more operators
than the option `unroll_limit` says, capture starts again and breaks at the end of each turn: a turn
is a graph of its own, which serves those that follow. A loop is judged by what it recorded so far
and by how many items its iterator says are left; of nested ones the outermost of many turns is cut.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from braze.capture.frames.control_signals import BreakRequested, LoopTooLong
from braze.capture.frames.frame import Frame
from braze.capture.frames.native_execution import check_idle
from braze.compat.python.bytecode import Instruction
from braze.compat.python.bytecode_versions import BYTECODE

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# Turns after which a loop is judged: shorter ones are always unrolled.
_TURNS = 256
_WARM_UP = 8  # turns of which nothing is concluded
# Their lengths are what is left, and asking runs no code of the program's.
_COUNTED = frozenset(
    map(type, (iter(()), iter([]), iter(range(1)), iter(range(1 << 70)), reversed([]), iter("")))
)


def begin_turn(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    """A jump back begins the next turn of a loop. BreakRequested where the loop is known to be
    long, LoopTooLong where it turns out to be."""
    target = instruction.target
    request = interpreter.request
    if request.long_loops and (frame.code, target) in request.long_loops:
        limit = request.options.unroll_limit
        detail = f"{frame.code.co_qualname} has one of more than {limit} operators"
        raise BreakRequested("long-loop", detail)
    turns, first, began = frame.turns.get(target, (0, 0, -1))
    if turns == _WARM_UP:
        first = interpreter.tracer.recorder.progress[0]
    if began < interpreter.idle.since:
        began = interpreter.outer_step
    frame.turns[target] = turns + 1, first, began
    if interpreter.steps_done >= interpreter.idle.due:
        check_idle(interpreter)
    if turns and turns % _TURNS == 0 and request.options is not None:
        recorded = interpreter.tracer.recorder.progress[0]
        each = (recorded - first) / (turns - _WARM_UP)
        if recorded + each * _turns_left(frame) > request.options.unroll_limit:
            raise LoopTooLong(_outermost(interpreter.frames))


def _turns_left(frame: Frame) -> int:
    """How many the iterator of a `for` has left, where it says so; else 0."""
    slots = BYTECODE.iterator_slots
    iterator = frame.stack[-slots] if len(frame.stack) >= slots else None
    return operator.length_hint(iterator) if type(iterator) in _COUNTED else 0


def _outermost(frames: list[Frame]) -> tuple[object, int]:
    """The code and the beginning of the outermost loop of many turns."""
    return next(
        (frame.code, target)
        for frame in frames
        for target in sorted(frame.turns)
        if frame.turns[target][0] >= _TURNS
    )
