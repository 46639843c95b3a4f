"""Instructions that decide what runs next: jumps, loops, returns, yields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.frames.dispatch_table import Handler, opcode
from braze.capture.frames.frame import Frame
from braze.capture.frames.generators import InlinedGenerator
from braze.capture.frames.loop_unrolling import begin_turn
from braze.capture.objects.iteration import iterator_of, next_of
from braze.capture.objects.runtime_asserts import DECIDED, decide
from braze.capture.objects.truth import truth
from braze.compat.python.bytecode import Instruction
from braze.compat.python.bytecode_versions import BYTECODE
from braze.compat.python.opcode_semantics import NO_INDEX

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@opcode("RETURN_VALUE")
def return_value(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> bool:
    return interpreter.finish_frame(frame.stack.pop())


@opcode("RETURN_CONST")
def return_const(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> bool:
    return interpreter.finish_frame(instruction.value)


@opcode("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.index = instruction.target


@opcode("JUMP_BACKWARD")
def jump_back(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    begin_turn(interpreter, frame, instruction)
    frame.index = instruction.target


@opcode("POP_JUMP_IF_TRUE")
def jump_if_true(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    if value is True or (
        value is not False and _asks(interpreter, frame, value, instruction, True)
    ):
        frame.index = instruction.target


@opcode("POP_JUMP_IF_FALSE")
def jump_if_false(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    if value is False or (
        value is not True and not _asks(interpreter, frame, value, instruction, False)
    ):
        frame.index = instruction.target


def _asks(
    interpreter: Interpreter, frame: Frame, value: object, instruction: Instruction, jumps_if: bool
) -> bool:
    if type(value) in DECIDED:
        return decide(interpreter, frame, value, instruction, jumps_if)
    return truth(interpreter, value)


@opcode("POP_JUMP_IF_NONE")
def jump_if_none(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if frame.stack.pop() is None:
        frame.index = instruction.target


@opcode("POP_JUMP_IF_NOT_NONE")
def jump_if_not_none(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if frame.stack.pop() is not None:
        frame.index = instruction.target


def _at_the_end_of_a_turn(jump_if: Handler) -> Handler:
    """A `while` of Python 3.11 ends with its condition."""

    def handler(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
        begin_turn(interpreter, frame, instruction)
        jump_if(interpreter, frame, instruction)

    return handler


opcode("POP_JUMP_BACKWARD_IF_TRUE")(_at_the_end_of_a_turn(jump_if_true))
opcode("POP_JUMP_BACKWARD_IF_FALSE")(_at_the_end_of_a_turn(jump_if_false))
opcode("POP_JUMP_BACKWARD_IF_NONE")(_at_the_end_of_a_turn(jump_if_none))
opcode("POP_JUMP_BACKWARD_IF_NOT_NONE")(_at_the_end_of_a_turn(jump_if_not_none))


@opcode("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if truth(interpreter, frame.stack[-1]):
        frame.index = instruction.target
    else:
        frame.stack.pop()


@opcode("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if not truth(interpreter, frame.stack[-1]):
        frame.index = instruction.target
    else:
        frame.stack.pop()


@opcode("TO_BOOL")
def to_bool(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack[-1]
    jump = frame.steps[frame.index][1]
    if type(value) in DECIDED and jump.name in _JUMP_SENSE:
        frame.stack[-1] = decide(interpreter, frame, value, jump, _JUMP_SENSE[jump.name], 1)
    else:
        frame.stack[-1] = truth(interpreter, value)


# Jumps behind TO_BOOL, and the truth at which they jump.
_JUMP_SENSE = {"POP_JUMP_IF_TRUE": True, "POP_JUMP_IF_FALSE": False}


# --- loops -----------------------------------------------------------------------------------


@opcode("FOR_ITER")
def for_iter(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    try:
        frame.stack.append(next_of(interpreter, frame.stack[-BYTECODE.iterator_slots]))
    except ProgramRaised as raised:
        if not isinstance(raised.exception, StopIteration):
            raise
        if BYTECODE.for_iter_keeps_iterator:
            frame.stack.append(None)
        else:
            frame.stack.pop()
        frame.index = instruction.target


@opcode("END_FOR")
def end_for(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.pop()
    if not BYTECODE.function_attributes_apart:
        frame.stack.pop()


# --- generators ------------------------------------------------------------------------------


@opcode("RETURN_GENERATOR")
def return_generator(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(None)


@opcode("YIELD_VALUE")
def yield_value(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> bool:
    generator = frame.generator
    generator.suspended = True
    return interpreter.finish_frame(frame.stack.pop())


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if not isinstance(frame.stack[-1], InlinedGenerator):
        frame.stack[-1] = iterator_of(interpreter, frame.stack[-1])
    frame.stack += NO_INDEX


@opcode("SEND")
def send(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    receiver = frame.stack[-BYTECODE.iterator_slots]
    try:
        if isinstance(receiver, InlinedGenerator):
            result = interpreter.native(receiver.send, value)
        elif value is None:
            result = next_of(interpreter, receiver)
        else:
            result = interpreter.call(interpreter.attribute(receiver, "send"), value)
        frame.stack.append(result)
    except ProgramRaised as raised:
        if not isinstance(raised.exception, StopIteration):
            raise
        if not BYTECODE.send_keeps_receiver:
            frame.stack.pop()
        frame.stack.append(raised.exception.value)
        frame.index = instruction.target


@opcode("END_SEND")
def end_send(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    frame.stack[-BYTECODE.iterator_slots :] = [value]


@opcode(
    "ASYNC_GEN_WRAP",
    "BEFORE_ASYNC_WITH",
    "END_ASYNC_FOR",
    "GET_AITER",
    "GET_ANEXT",
    "GET_AWAITABLE",
)
def awaitable(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    raise BreakRequested("unsupported-function", "a coroutine")
