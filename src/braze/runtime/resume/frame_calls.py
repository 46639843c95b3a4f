"""Calls made by a frame that the driver holds.

Builtins that look at the frame which calls them (`locals`, `super`) are answered from its values.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable
from typing import Any, Protocol, final

from braze.compat.python.code_objects import FRAME_WALKERS


class ExecutableFrame(Protocol):
    """What a handler sees of a frame. call: `call(callable, args, kwargs)`."""

    code: types.CodeType
    globals: dict[str, Any]
    locals: dict[str, Any]
    stack: list[Any]
    call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


@final
class RunNatively(Exception):
    """This instruction, on these values, is left to the interpreter."""


def contents_of(value: Any) -> list[Any]:
    """The value in a cell, as a list that is empty where the cell is."""
    if not isinstance(value, types.CellType):
        return [value]
    try:
        return [value.cell_contents]
    except ValueError:
        return []


def _locals(frame: ExecutableFrame) -> dict[str, Any]:
    code = frame.code
    cells = {*code.co_cellvars, *code.co_freevars}
    found: dict[str, Any] = {}
    for name, value in frame.locals.items():
        for content in contents_of(value) if name in cells else [value]:
            found[name] = content
    return found


def _super(frame: ExecutableFrame) -> Any:
    code = frame.code
    if not code.co_argcount or "__class__" not in code.co_freevars:
        raise RunNatively
    name = code.co_varnames[0]
    first = frame.locals.get(name)
    if name in code.co_cellvars:
        first = first.cell_contents if isinstance(first, types.CellType) else None
    return super(frame.locals["__class__"].cell_contents, first)


def _natively(frame: ExecutableFrame) -> Any:
    raise RunNatively


# Answers to calls without arguments.
_WITHOUT_ARGUMENTS: dict[Any, Callable[[ExecutableFrame], Any]] = {
    builtins.super: _super,
    builtins.locals: _locals,
    builtins.vars: _locals,
    builtins.dir: lambda frame: sorted(_locals(frame)),
    builtins.globals: lambda frame: frame.globals,
}
_HASHABLE = (type, types.BuiltinFunctionType)
# They look at the frame, or at each line that it runs from now on.
_ALWAYS_NATIVE = (
    builtins.eval,
    builtins.exec,
    builtins.breakpoint,
    sys.settrace,
    sys.setprofile,
    *FRAME_WALKERS,
)


def call_in_frame(
    frame: ExecutableFrame, callable: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call made by the frame; RunNatively where the callable needs the real frame."""
    if any(callable is reader for reader in _ALWAYS_NATIVE):
        raise RunNatively
    if not args and not kwargs and type(callable) in _HASHABLE:
        answer = _WITHOUT_ARGUMENTS.get(callable)
        if answer is not None:
            return answer(frame)
    return frame.call(callable, args, kwargs)
