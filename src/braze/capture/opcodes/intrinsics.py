"""Intrinsics (from Python 3.12): small instructions by number, one operand or two."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from braze.capture.frames.control_signals import BreakRequested
from braze.capture.frames.dispatch_table import opcode
from braze.capture.frames.frame import Frame
from braze.capture.objects.operators import UNARY, unary
from braze.capture.opcodes.exceptions import prepare_reraise
from braze.capture.opcodes.imports import take_all
from braze.compat.python.bytecode import Instruction
from braze.compat.python.intrinsics import ONE_OPERAND, TWO_OPERANDS, native_intrinsic

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@opcode("CALL_INTRINSIC_1")
def call_intrinsic(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    name = ONE_OPERAND[instruction.arg]
    handler = _OWN.get(name)
    value = frame.stack.pop()
    if handler is not None:
        frame.stack.append(handler(interpreter, frame, value))
    else:
        frame.stack.append(interpreter.native(native_intrinsic(name, frame.globals), value))


@opcode("CALL_INTRINSIC_2")
def call_intrinsic_two(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    name = TWO_OPERANDS[instruction.arg]
    if name == "INTRINSIC_PREP_RERAISE_STAR":
        prepare_reraise(interpreter, frame, instruction)
        return
    second = frame.stack.pop()
    function = native_intrinsic(name, frame.globals)
    frame.stack[-1] = interpreter.native(function, frame.stack[-1], second)


@opcode("PRINT_EXPR")
def print_expression(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    _print(interpreter, frame, None)


def _print(interpreter: Interpreter, frame: Frame, value: object) -> None:
    raise BreakRequested("input-output", "printing an expression")


def _import_star(interpreter: Interpreter, frame: Frame, module: object) -> None:
    take_all(interpreter, frame, module)


def _stop_iteration_error(interpreter: Interpreter, frame: Frame, value: Any) -> object:
    """What leaves a generator."""
    if not issubclass(type(value), StopIteration):
        return value
    error = RuntimeError("generator raised StopIteration")
    error.__cause__ = error.__context__ = value
    return error


def _wrap(interpreter: Interpreter, frame: Frame, value: object) -> None:
    raise BreakRequested("unsupported-function", "a coroutine")


def _positive(interpreter: Interpreter, frame: Frame, value: object) -> object:
    return unary(interpreter, UNARY["__pos__"], value)


def _to_tuple(interpreter: Interpreter, frame: Frame, value: object) -> Any:
    return tuple(interpreter.side_effects.contents(value))


# The others make type variables and the like, which C code does.
_OWN: dict[str, Callable[[Any, Frame, Any], Any]] = {
    "INTRINSIC_PRINT": _print,
    "INTRINSIC_IMPORT_STAR": _import_star,
    "INTRINSIC_STOPITERATION_ERROR": _stop_iteration_error,
    "INTRINSIC_ASYNC_GEN_WRAP": _wrap,
    "INTRINSIC_UNARY_POSITIVE": _positive,
    "INTRINSIC_LIST_TO_TUPLE": _to_tuple,
}
