"""Branches of an optimizer's step on numbers of its state: both sides are made, and chosen from.

    if rho_t > 5.0:                          %9 = gt(%rho, 5.0)
        param.add_(update * rect)     ->     %20 = add(%p, ...); %30 = add(%p, ...)
    else:                                    %31 = where(%9, %20, %30)    # written to the parameter
        param.add_(update)

So a step whose number changes at each call is one graph. Each side is interpreted in a copy of the
frame, up to where the two meet. Done for the modules of `BOTH_SIDES` only, whose branches are known
to compute numbers and to write to tensors. Refused, by the break that it would be anyway: sides
that do not meet, raise, return or loop, and those that change something else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch

from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.frames.frame import Frame, Unread
from braze.capture.state.guard_context import CONSTANTS
from braze.capture.training.version_counters import WriteCounts
from braze.compat.python.bytecode import Instruction, meeting_point
from braze.compat.torch.aten import aten
from braze.compat.torch.dynamo_interop import BOTH_SIDES
from braze.frozen import frozen
from braze.ir.graphs.graph import Value
from braze.ir.graphs.op_effects import has_effects
from braze.tracing.fake_tensor import Place
from braze.tracing.symbolic.symbolic_float import SymbolicFloat, compared, number_at, number_value

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.tracing.tracer import Tracer

# The memory that one side wrote to, with what that held before and after.
Written: TypeAlias = dict[Place, tuple[Value, Value]]


@final
@frozen
class _Side:
    """What one side left: its frame, and what it wrote to."""

    frame: Frame
    written: Written


def took_both(interpreter: Interpreter, frame: Frame, sign: str, left: Any, right: Any) -> bool:
    """Go on behind both sides of the jump that follows a comparison, if that is possible."""
    jump = frame.steps[frame.index][1]
    if not _is_asked_of_data(left, right) or jump.name != "POP_JUMP_IF_FALSE":
        return False
    if frame.globals.get("__name__") not in BOTH_SIDES or torch.is_grad_enabled():
        return False
    join = meeting_point(frame.code, frame.index + 1, jump.target)
    if join < 0 or frame.generator is not None or frame.names is not None:
        return False
    condition = interpreter.native(compared, sign, left, right)
    del frame.stack[-2:]
    counts = WriteCounts(frame.locals.values())  # one side is made, and counted, in eager
    first = _side(interpreter, frame, frame.index + 1, join)
    counted = counts.put_back()
    sides = (first, _side(interpreter, frame, jump.target, join))
    counts.raise_to(counted)
    write_chosen(interpreter.tracer, condition, *[side.written for side in sides])
    frame.locals = _chosen_locals(interpreter, condition, *sides)
    stacks = [side.frame.stack for side in sides]
    if len(stacks[0]) != len(stacks[1]):
        raise _refused()
    frame.stack = [_chosen(interpreter, condition, *pair) for pair in zip(*stacks)]
    frame.index = join
    return True


def _is_asked_of_data(left: object, right: object) -> bool:
    numbers = [x for x in (left, right) if type(x) is SymbolicFloat]
    plain = all(type(x) in (SymbolicFloat, float, int) for x in (left, right))
    return plain and any(number.hint is None for number in numbers)


def _refused() -> BreakRequested:
    detail = "the sides of a branch change other things than tensors and numbers"
    return BreakRequested("data-dependent-branch", detail)


# --- one side ------------------------------------------------------------------------------------


def _finish_side(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> bool:
    interpreter.frames.pop()
    interpreter.returned = _finish_side
    return True


def _side(interpreter: Interpreter, frame: Frame, start: int, join: int) -> _Side:
    """Interpret one side."""
    copy = Frame(frame.code, frame.globals, frame.steps, frame.function)
    copy.index, copy.cells, copy.handled = start, frame.cells, list(frame.handled)
    copy.locals, copy.stack = dict(frame.locals), list(frame.stack)
    stop = (_finish_side, dataclasses.replace(frame.steps[join][1], region=None))
    copy.steps = (*frame.steps[:join], stop, *frame.steps[join + 1 :])
    cells = _contents(frame)
    ended, written = written_by(interpreter, lambda: interpreter.run(copy))
    if ended is not _finish_side or _contents(frame) != cells:
        raise _refused()
    return _Side(copy, written)


def written_by(interpreter: Interpreter, run: Callable[[], object]) -> tuple[object, Written]:
    """What `run` gives, and what it wrote to tensors, which is taken back. Raises BreakRequested
    where it changes something else."""
    recorder = interpreter.tracer.recorder
    outer, recorder.first_values = recorder.first_values, {}
    marks, calls, made = interpreter.marks(), len(recorder.calls), recorder.next_number
    noted = len(interpreter.calls)
    try:
        result = run()
        mark_conditional(interpreter, noted)
        found: dict[Place, Value] = recorder.first_values
        first = {p: v for p, v in found.items() if v.index < made or p.input_index >= 0}
        written = {place: (before, recorder.read(place)) for place, before in first.items()}
        with torch.no_grad():
            for place, before in first.items():
                recorder.write(place, before)
    except ProgramRaised:
        raise _refused() from None
    finally:
        recorder.first_values = outer
    if interpreter.marks() != marks or any(has_effects(c[0]) for c in recorder.calls[calls:]):
        raise _refused()
    return result, written


def mark_conditional(interpreter: Interpreter, start: int) -> None:
    """Say of the torch-level calls noted since `start` that the program makes them in one of two
    cases: a graph of such calls would make them always."""
    calls = interpreter.calls
    calls[start:] = [dataclasses.replace(call, is_plain=False) for call in calls[start:]]


def _contents(frame: Frame) -> list[int]:
    """The identities of what the frame's own cells hold, 0 of an empty one."""
    found = []
    for cell in frame.cells.values():
        try:
            found.append(id(cell.cell_contents))
        except ValueError:
            found.append(0)
    return found


# --- both ----------------------------------------------------------------------------------------


def write_chosen(tracer: Tracer, condition: Value, first: Written, second: Written) -> None:
    """Write what one side wrote, or what the other did."""
    with torch.no_grad():
        for place in {**first, **second}:
            before, then = first.get(place) or second[place][:1] * 2
            other = second[place][1] if place in second else before
            tracer.recorder.write(place, _where(tracer, condition, then, other))


def _where(tracer: Tracer, condition: Value, first: Value, second: Value) -> Value:
    recorder, device = tracer.recorder, getattr(first.type, "device", None)
    if device is not None and device != getattr(condition.type, "device", None):
        condition = recorder.emit(aten._to_copy.default, (condition,), {"device": device})
    chosen: Value = recorder.emit(aten.where.self, (condition, first, second), {})
    return chosen


def _chosen_locals(
    interpreter: Interpreter, condition: Value, first: _Side, second: _Side
) -> dict[str, object]:
    one, other = first.frame.locals, second.frame.locals
    if one.keys() != other.keys():
        raise _refused()
    return {name: _chosen(interpreter, condition, one[name], other[name]) for name in one}


def _chosen(interpreter: Interpreter, condition: Value, first: object, second: object) -> object:
    """One of two values of a local variable, or of an entry of the stack."""
    if first is second or type(second) is Unread:
        return first
    if type(first) is Unread:
        return second
    numbers = (int, float, SymbolicFloat)
    if type(first) in numbers and type(second) in numbers:
        if type(first) is type(second) and type(first) is not SymbolicFloat and first == second:
            return first
        tracer = interpreter.tracer
        values = [number_value(tracer, number) for number in (first, second)]
        return number_at(tracer, _where(tracer, condition, *values))
    if type(first) is type(second) and type(first) in CONSTANTS and first == second:
        return first
    raise _refused()
