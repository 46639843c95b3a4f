"""A capture stage for tests: moves recipes about, and breaks at everything that computes.

It knows loads, stores, jumps and returns; calls of the functions in `inlined` open a second frame,
so that breaks happen with a caller waiting. There is no graph.
"""

from __future__ import annotations

import types
from dataclasses import replace
from typing import Any

from braze.compat.python.bytecode import Instruction, decode
from braze.compat.python.bytecode_versions import BYTECODE
from braze.compat.python.code_objects import GENERATOR_FLAGS, entry_offset
from braze.ir.captured.compile_request import CompileAnswer, CompiledEntry, CompileRequest
from braze.ir.captured.frame import (
    NULL,
    Break,
    FrameState,
    FromConstant,
    FromSource,
    GraphBreak,
    NewCall,
    Recipe,
    Refused,
    Return,
)
from braze.ir.captured.source import CellObjectSource, LocalSource, StackSource
from braze.ir.origin import UNKNOWN

# Instructions of 3.13 that are two in one.
_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
BREAK = GraphBreak("test", "a computation", "none", UNKNOWN)


class _Frame:
    def __init__(self, code: types.CodeType, space: dict[str, Any], function: Any) -> None:
        self.program = decode(code)
        self.globals = space
        self.function = function
        self.locals: dict[str, Recipe] = {}
        self.stack: list[Recipe] = []
        self.index = 0

    def state(self) -> FrameState:
        offset = self.program.instructions[self.index].offset
        code = self.program.code
        values = tuple(self.locals.items())
        return FrameState(code, self.globals, offset, values, tuple(self.stack), self.function)


class Recorder:
    """`compile_frame` of a Dispatcher; requests are kept for inspection."""

    def __init__(self, inlined: tuple[Any, ...] = ()) -> None:
        self.inlined = inlined
        self.requests: list[CompileRequest] = []

    def __call__(self, request: CompileRequest) -> CompileAnswer:
        self.requests.append(request)
        if request.code.co_flags & GENERATOR_FLAGS:
            return Refused("unsupported", "generator", "a generator", "", UNKNOWN)
        frames = [self._root(request)]
        while True:
            frame = frames[-1]
            instruction = frame.program.instructions[frame.index]
            if instruction.name in ("RETURN_VALUE", "RETURN_CONST"):
                value = (
                    FromConstant(instruction.value)
                    if instruction.name == "RETURN_CONST"
                    else frame.stack[-1]
                )
                if len(frames) == 1:
                    return self._entry(Return(value))
                frames.pop()
                caller = frames[-1]
                count = caller.program.instructions[caller.index].arg + 2
                caller.stack[-count:] = [value]
                caller.index += 1
            elif self._inlines(frame, instruction, frames):
                continue
            elif not self._move(frame, instruction):
                return self._entry(Break(BREAK, tuple(frame.state() for frame in frames)))

    def _entry(self, exit: Any) -> CompiledEntry:
        return CompiledEntry((), (), lambda inputs: [], (), exit)

    def _root(self, request: CompileRequest) -> _Frame:
        code = request.code
        frame = _Frame(code, request.values.globals, request.function)
        for name in request.values.locals:
            is_cell = name in code.co_freevars or (request.offset and name in code.co_cellvars)
            source = CellObjectSource(name) if is_cell else LocalSource(name)
            frame.locals[name] = FromSource(source)
        if request.offset:
            frame.stack = [
                FromConstant(NULL) if slot is NULL else FromSource(StackSource(index))
                for index, slot in enumerate(request.values.stack)
            ]
            frame.index = frame.program.index_at[request.offset]
        else:
            self._make_cells(frame)
        return frame

    def _make_cells(self, frame: _Frame) -> None:
        code = frame.program.code
        for name in code.co_cellvars:
            if name in code.co_varnames or self._is_made_at_entry(frame, name):
                contents = (frame.locals[name],) if name in frame.locals else ()
                frame.locals[name] = NewCall(types.CellType, contents)
        frame.index = frame.program.index_at[entry_offset(code)]

    def _is_made_at_entry(self, frame: _Frame, name: str) -> bool:
        first = frame.program.index_at[entry_offset(frame.program.code)]
        made = frame.program.instructions[:first]
        return any(item.name == "MAKE_CELL" and item.value == name for item in made)

    def _inlines(self, frame: _Frame, instruction: Instruction, frames: list[_Frame]) -> bool:
        if instruction.name != "CALL" or instruction.keyword_names:
            return False
        operands = frame.stack[-instruction.arg - 2 :]
        called = operands[0] if BYTECODE.callable_first else operands[1]
        if not isinstance(called, FromConstant) or called.value not in self.inlined:
            return False
        function = called.value
        code = function.__code__
        inner = _Frame(code, function.__globals__, function)
        arguments = operands[2:]
        missing = code.co_argcount - len(arguments)
        defaults = (function.__defaults__ or ())[-missing:] if missing else ()
        arguments += [FromConstant(value) for value in defaults]
        inner.locals = dict(zip(code.co_varnames, arguments, strict=False))
        self._make_cells(inner)
        frames.append(inner)
        return True

    def _move(self, frame: _Frame, i: Instruction) -> bool:
        """One instruction that computes nothing; False: break before it."""
        if i.name in _PAIRS:
            return self._move_twice(frame, i)
        stack = frame.stack
        following = frame.index + 1
        if i.name == "LOAD_CONST":
            stack.append(FromConstant(i.value))
        elif i.name in ("LOAD_FAST", "LOAD_CLOSURE") and i.value in frame.locals:
            stack.append(frame.locals[i.value])
        elif i.name == "STORE_FAST":
            frame.locals[i.value] = stack.pop()
        elif i.name == "DELETE_FAST" and i.value in frame.locals:
            del frame.locals[i.value]
        elif i.name == "POP_TOP":
            stack.pop()
        elif i.name == "PUSH_NULL":
            stack.append(FromConstant(NULL))
        elif i.name == "SWAP":
            stack[-1], stack[-i.arg] = stack[-i.arg], stack[-1]
        elif i.name == "COPY":
            stack.append(stack[-i.arg])
        elif i.name == "LOAD_GLOBAL" and i.arg & 1 and i.value in frame.globals:
            pair = [FromConstant(NULL), FromConstant(frame.globals[i.value])]
            stack += reversed(pair) if BYTECODE.callable_first else pair
        elif i.name in ("JUMP_FORWARD", "RESUME"):
            following = i.target if i.name == "JUMP_FORWARD" else following
        else:
            return False
        frame.index = following
        return True

    def _move_twice(self, frame: _Frame, i: Instruction) -> bool:
        before = dict(frame.locals), list(frame.stack), frame.index
        for name, value in zip(_PAIRS[i.name], i.value):
            frame.index = before[2]
            if not self._move(frame, replace(i, name=name, value=value)):
                frame.locals, frame.stack, frame.index = before
                return False
        return True
