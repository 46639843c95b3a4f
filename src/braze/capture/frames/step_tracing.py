"""The logs `trace_source`, `trace_call` and `trace_bytecode`: what capture interprets, as it does.

    TRACE starts_line model.py:4 in f
        y = g(x)
    TRACE LOAD_FAST x []
    TRACE inlined call model.py:9 g, depth 1

A frame gets steps that log before they run; where no such log is on, nothing is wrapped.
"""

from __future__ import annotations

import linecache
import types
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.frames.dispatch_table import Step
from braze.capture.frames.frame import Frame
from braze.compat.python.bytecode import Instruction
from braze.trace import enabled, log_line

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_LOGS = ("trace_source", "trace_call", "trace_bytecode")
_PLAIN = (int, float, bool, str, bytes, types.NoneType)
_SHOWN_CHARACTERS = 40


@final
class StepTracing:
    """Logs the steps of one capture."""

    def __init__(self) -> None:
        self._traced: dict[tuple[Step, ...], tuple[Step, ...]] = {}
        self._place = ("", 0)

    def steps(self, frame: Frame, depth: int) -> tuple[Step, ...]:
        """The steps of a frame that begins, or goes on, each logged before it runs."""
        code = frame.code
        if frame.index == 0 and depth:
            text = f"TRACE inlined call {code.co_filename}:{code.co_firstlineno} "
            log_line("trace_call", f"{text}{code.co_qualname}, depth {depth}")
        found = self._traced.get(frame.steps)
        if found is None:
            found = tuple([self._step(step) for step in frame.steps])
            self._traced[frame.steps] = found
        return found

    def _step(self, step: Step) -> Step:
        handler, instruction = step

        def logged(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> bool | None:
            self._log(frame, instruction)
            return handler(interpreter, frame, instruction)

        return logged, instruction

    def _log(self, frame: Frame, instruction: Instruction) -> None:
        file, line = frame.code.co_filename, instruction.line
        if line and self._place != (file, line):
            self._place = file, line
            source = linecache.getline(file, line).strip()
            text = f"TRACE starts_line {file}:{line} in {frame.code.co_qualname}\n    {source}"
            log_line("trace_source", text)
        if enabled("trace_bytecode"):
            stack = ", ".join(map(_shown, frame.stack))
            log_line("trace_bytecode", f"TRACE {instruction.name}{_operand(instruction)} [{stack}]")


def make_step_tracing() -> StepTracing | None:
    """What logs the steps of a capture; None where no log asks for it."""
    return StepTracing() if any(map(enabled, _LOGS)) else None


def _operand(instruction: Instruction) -> str:
    """What the instruction is of: a name, a constant, or nothing."""
    value = instruction.value
    if isinstance(value, str) and instruction.name != "LOAD_CONST":
        return f" {value}"
    return "" if value is None else f" {_shown(value)}"


def _shown(value: Any) -> str:
    """A value of the program, without asking it: its `__repr__` may be the program's own."""
    kind = type(value)
    if kind in _PLAIN:
        text = repr(value)
        return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
    if issubclass(kind, torch.Tensor):
        return "Tensor"
    name = value.__name__ if kind in (types.FunctionType, types.BuiltinFunctionType) else ""
    return f"{kind.__name__} {name}" if name else kind.__name__
