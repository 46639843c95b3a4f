"""Prints a loop program as text: stable, so that it can be compared and used as a key.

input b0: f32[4, 8][8, 1]cpu
b1: f32[4, 8][8, 1]cpu
b1[i0 < 4, i1 < 8] = exp(b0[i0, i1])                    # model.py:7 torch.exp
b2: f32[4][1]cpu
b2[i0 < 4] = sum(r0 < 8: b1[i0, r0])
return b2
"""

from __future__ import annotations

import os.path
from typing import Any

import torch

from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    BufferView,
    Cast,
    ExternCall,
    Guarded,
    Index,
    InRange,
    Literal,
    Load,
    LoopProgram,
    Reduce,
    Scalar,
    Scatter,
    Statement,
)
from braze.ir.origin import UNKNOWN, Origin
from braze.ir.types import DTYPE_NAMES, Size
from braze.shapes.expr import Expr, Symbol

# Operators of scalars that are written between their operands.
INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "and": "&",
    "or": "|",
    "xor": "^",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}


def print_loops(program: LoopProgram, origins: bool = True) -> str:
    """The program's text, one statement a line, ending in a newline."""
    lines = [f"input {_print_buffer(buffer)}" for buffer in program.inputs]
    lines += [f"constant {_print_buffer(buffer)}" for buffer, _ in program.constants]
    declared: set[Buffer] = set()
    for statement in program.statements:
        lines += _print_declarations(statement, declared)
        text = print_statement(statement)
        place = _print_origin(statement.origin) if origins else ""
        lines.append(f"{text:<60}  # {place}" if place else text)
    for target, view in program.mutations:
        lines.append(f"mutate {target} = {print_view(view)}")
    lines.append(f"return {', '.join(map(print_view, program.outputs))}".rstrip())
    return "\n".join(lines) + "\n"


def print_statement(statement: Statement) -> str:
    """One definition or extern call, without its origin."""
    if isinstance(statement, ExternCall):
        results = ", ".join("_" if b is None else b.name for b in statement.outputs)
        results = results if statement.computes is None else str(statement.computes)
        given = [_print_argument(argument) for argument in statement.args]
        given += [f"{name}={_print_argument(value)}" for name, value in statement.kwargs]
        return f"{results} = {statement.op}({', '.join(given)})"
    axes = dict(statement.axes)
    store = []
    for coordinate in statement.store:
        symbol = _single_symbol(coordinate)
        if symbol in axes:
            store.append(f"{symbol} < {axes.pop(symbol)}")
        else:
            store.append(str(coordinate))
    free = ", ".join(f"{symbol} < {size}" for symbol, size in axes.items())
    over = f" for {free}" if free else ""
    return f"{statement.target}[{', '.join(store)}]{over} = {print_scalar(statement.body)}"


def print_scalar(scalar: Scalar) -> str:
    """A scalar expression, fully bracketed."""
    text: str = _PRINTERS[type(scalar)](scalar)
    return text


def print_view(view: BufferView) -> str:
    """The buffer's name, and the view's strides where it is not the whole buffer."""
    buffer = view.buffer
    whole = (
        view.shape == buffer.shape
        and view.stride == buffer.stride
        and view.offset == 0
        and view.dtype == buffer.dtype
    )
    if whole:
        return buffer.name
    dtype = "" if view.dtype == buffer.dtype else DTYPE_NAMES.get(view.dtype, str(view.dtype))
    offset = "" if view.offset == 0 else f" + {view.offset}"
    return f"{buffer.name}{{{dtype}{_print_sizes(view.shape)}{_print_sizes(view.stride)}{offset}}}"


# --- private ---------------------------------------------------------------------------------


def _print_declarations(statement: Statement, declared: set[Buffer]) -> list[str]:
    made = statement.outputs if isinstance(statement, ExternCall) else (statement.target,)
    fresh = [b for b in dict.fromkeys(made) if b is not None and b not in declared]
    declared.update(fresh)
    return [_print_buffer(buffer) for buffer in fresh]


def _print_buffer(buffer: Buffer) -> str:
    dtype = DTYPE_NAMES.get(buffer.dtype, str(buffer.dtype))
    shape, stride = _print_sizes(buffer.shape), _print_sizes(buffer.stride)
    return f"{buffer.name}: {dtype}{shape}{stride}{buffer.device}"


def _print_sizes(sizes: tuple[Size, ...]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _print_origin(origin: Origin) -> str:
    if origin.file == UNKNOWN.file:
        return ""
    return f"{os.path.basename(origin.file)}:{origin.line} {origin.call}".rstrip()


def _print_argument(argument: object) -> str:
    if isinstance(argument, BufferView):
        return f"number {print_view(argument)}" if argument.is_number else print_view(argument)
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(map(_print_argument, argument))}]"
    if isinstance(argument, Expr):
        return str(argument)
    if isinstance(argument, torch.dtype):
        return DTYPE_NAMES.get(argument, str(argument))
    return repr(argument)


def _single_symbol(coordinate: Expr) -> Symbol | None:
    if len(coordinate.terms) == 1:
        monomial, coefficient = coordinate.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0]
    return None


def _print_literal(scalar: Literal) -> str:
    if scalar.dtype == torch.bool:
        return str(scalar.value)
    return f"{scalar.value!r}:{DTYPE_NAMES.get(scalar.dtype, str(scalar.dtype))}"


def _print_index(scalar: Index) -> str:
    return f"index({scalar.expr})"


def _print_load(scalar: Load) -> str:
    coordinates = (str(c) if isinstance(c, Expr) else print_scalar(c) for c in scalar.coordinates)
    return f"{scalar.buffer}[{', '.join(coordinates)}]"


def _print_apply(scalar: Apply) -> str:
    operands = list(map(print_scalar, scalar.operands))
    if scalar.op in INFIX and len(operands) == 2:
        return f"({operands[0]} {INFIX[scalar.op]} {operands[1]})"
    return f"{scalar.op}({', '.join(operands)})"


def _print_cast(scalar: Cast) -> str:
    return f"{DTYPE_NAMES.get(scalar.dtype, str(scalar.dtype))}({print_scalar(scalar.operand)})"


def _print_guarded(scalar: Guarded) -> str:
    condition, value = print_scalar(scalar.condition), print_scalar(scalar.value)
    return f"({value} if {condition} else {print_scalar(scalar.other)})"


def _print_in_range(scalar: InRange) -> str:
    return f"checked({print_scalar(scalar.operand)}, {scalar.size})"


def _print_reduce(scalar: Reduce) -> str:
    axes = ", ".join(f"{symbol} < {size}" for symbol, size in scalar.axes)
    return f"{scalar.kind}({axes}: {print_scalar(scalar.body)})"


def _print_scatter(scalar: Scatter) -> str:
    places = ", ".join("_" if p is None else print_scalar(p) for p in scalar.positions)
    order = "" if scalar.in_order else " in any order"
    return f"{scalar.kind} at [{places}]{order}: {print_scalar(scalar.value)}"


_PRINTERS: dict[type, Any] = {
    Literal: _print_literal,
    Index: _print_index,
    Load: _print_load,
    Apply: _print_apply,
    Cast: _print_cast,
    Guarded: _print_guarded,
    InRange: _print_in_range,
    Reduce: _print_reduce,
    Scatter: _print_scatter,
}
