"""Functions of the program that only compute with numbers: `lambda count: 0.95**count`.

It makes no difference when such a function is called, as long as what it reads of its module and
its closure stays as it is. So it may be called for real, behind the graph. What its instructions
may be is listed; what they may call are such functions, and those of Python's that do the same.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, final

from braze.capture.frames.control_signals import CannotRebuild, ProgramRaised
from braze.capture.frames.frame import Frame
from braze.capture.handlers.dispatch import known_function, open_closure
from braze.capture.opcodes.variables import read_global
from braze.capture.state.guard_context import is_constant
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# What a function read: of its module's names, or (where the frame is None) its closure's.
_Reading: TypeAlias = tuple[Frame, str, bool, Any]


@final
class NumberFunctions:
    """Functions that were found to be such, and what they read meanwhile.

    unchanged: raises CannotRebuild where the frame wrote to what they read.
    """

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter: Any = interpreter
        self._known: dict[int, tuple[Any, bool]] = {}
        self._readings: list[_Reading] = []
        self._step = -1

    def computes(self, function: object) -> bool:
        """Whether a function only computes with numbers where it is given numbers."""
        known = self._known.get(id(function))
        if known is None:
            self._known[id(function)] = function, True  # of one that calls itself
            found = self._computes(function)
            known = self._known[id(function)] = function, found
            self._step = self._interpreter.outer_step
        return known[1]

    def check_unchanged(self) -> None:
        """CannotRebuild where the frame wrote to what they read."""
        for frame, name, is_global, value in self._readings:
            if self._read(frame, name, is_global) is not value:
                what = (
                    f"{frame.code.co_qualname}, which is called behind the graph and reads {name}"
                )
                raise CannotRebuild(what, self._step)

    def release(self) -> None:
        """Let go of the interpreter."""
        self._interpreter = None
        self._known.clear()
        self._readings.clear()

    # --- private -----------------------------------------------------------------------------

    def _computes(self, function: object) -> bool:
        interpreter = self._interpreter
        if type(function) is functools.partial:
            parts = {n: interpreter.attribute(function, n) for n in ("func", "args", "keywords")}
            given, named = [
                interpreter.side_effects.contents(parts[n]) for n in ("args", "keywords")
            ]
            if not all(map(is_constant, (*given, *named.values()))):
                return False
            return self.computes(parts["func"])
        if type(function) is not types.FunctionType:
            return type(function) in _HASHED and function in _PYTHONS
        known = known_function(interpreter, function)
        if not all(map(is_constant, (*known.defaults, *known.keyword_defaults.values()))):
            return False
        frame = Frame(known.code, function.__globals__, known.steps, function)
        open_closure(interpreter, function, frame)
        return self._are_allowed(frame)

    def _are_allowed(self, frame: Frame) -> bool:
        module: Any = None
        for _, instruction in frame.steps:
            name, before = instruction.name, module
            module = None
            if name in _READING:
                value = self._read(frame, instruction.value, name == "LOAD_GLOBAL")
                self._readings.append((frame, instruction.value, name == "LOAD_GLOBAL", value))
                if value is math:
                    module = value
                elif not (is_constant(value) or (callable(value) and self.computes(value))):
                    return False
            elif name in ("LOAD_ATTR", "LOAD_METHOD"):
                if before is None or not hasattr(before, instruction.value):
                    return False
            elif name not in _COMPUTING and not name.startswith("POP_JUMP_"):
                return False
        return True

    def _read(self, frame: Frame, name: str, is_global: bool) -> object:
        if is_global:
            try:
                return read_global(self._interpreter, frame, name)
            except ProgramRaised:
                return ABSENT
        cell = frame.cells.get(name)
        return ABSENT if cell is None else self._interpreter.side_effects.read_cell(cell)


def _functions_of(space: Iterable[object]) -> frozenset[object]:
    return frozenset([value for value in space if type(value) is types.BuiltinFunctionType])


_PYTHONS = _functions_of(vars(math).values()) | frozenset(
    {abs, bool, divmod, float, int, len, max, min, pow, range, round, sum}
)
_HASHED = (types.BuiltinFunctionType, type)
_READING = frozenset({"LOAD_GLOBAL", "LOAD_DEREF"})
_COMPUTING = frozenset(
    "BINARY_OP BINARY_SUBSCR BUILD_TUPLE CALL CALL_KW COMPARE_OP CONTAINS_OP COPY END_FOR FOR_ITER "
    "GET_ITER IS_OP JUMP_BACKWARD JUMP_FORWARD JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP LOAD_CONST "
    "LOAD_FAST LOAD_FAST_LOAD_FAST POP_ITER POP_TOP PUSH_NULL RETURN_CONST RETURN_VALUE "
    "STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST SWAP TO_BOOL UNARY_INVERT "
    "UNARY_NEGATIVE UNARY_NOT UNARY_POSITIVE UNPACK_SEQUENCE".split()
)
