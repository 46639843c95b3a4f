"""Instructions for operators and comparisons."""

from __future__ import annotations

import dis
from typing import Any

from braze.capture.assertions import DECIDED
from braze.capture.both_sides import took_both
from braze.capture.frames import Frame
from braze.capture.operators import COMPARISONS, OPERATORS, UNARY, binary, contains, is_same, unary
from braze.capture.program import opcode
from braze.capture.truth import truth
from braze.compat.bytecode import Instruction
from braze.compat.bytecode_versions import BINARY_SIGNS, BYTECODE
from braze.standins.numbers import SymbolicFloat

_OPERATOR_OF: list[Any] = [OPERATORS.get(sign) for sign in BINARY_SIGNS]


@opcode("BINARY_OP")
def binary_op(interpreter: Any, frame: Frame, instruction: Instruction) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = binary(interpreter, _OPERATOR_OF[instruction.arg], frame.stack[-1], right)


@opcode("COMPARE_OP")
def compare_op(interpreter: Any, frame: Frame, instruction: Instruction) -> None:
    sign = dis.cmp_op[instruction.arg >> BYTECODE.compare_shift]
    operands = frame.stack[-2:]
    if SymbolicFloat in map(type, operands) and took_both(interpreter, frame, sign, *operands):
        return
    right = frame.stack.pop()
    comparison = COMPARISONS[sign]
    result = binary(interpreter, comparison, frame.stack[-1], right)
    to_bool = BYTECODE.compare_to_bool_bit and instruction.arg & BYTECODE.compare_to_bool_bit
    if to_bool and type(result) not in DECIDED:  # of these the jump behind it asks the truth
        result = truth(interpreter, result)
    frame.stack[-1] = result


@opcode("IS_OP")
def is_op(interpreter: Any, frame: Frame, instruction: Instruction) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = is_same(interpreter, frame.stack[-1], right) is not bool(instruction.arg)


@opcode("CONTAINS_OP")
def contains_op(interpreter: Any, frame: Frame, instruction: Instruction) -> None:
    container = frame.stack.pop()
    found = contains(interpreter, container, frame.stack[-1])
    frame.stack[-1] = found is not bool(instruction.arg)


@opcode("UNARY_NOT")
def unary_not(interpreter: Any, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = not truth(interpreter, frame.stack[-1])


@opcode("UNARY_NEGATIVE")
def unary_negative(interpreter: Any, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = unary(interpreter, UNARY["__neg__"], frame.stack[-1])


@opcode("UNARY_POSITIVE")
def unary_positive(interpreter: Any, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = unary(interpreter, UNARY["__pos__"], frame.stack[-1])


@opcode("UNARY_INVERT")
def unary_invert(interpreter: Any, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = unary(interpreter, UNARY["__invert__"], frame.stack[-1])
