"""Calls made by a frame that the driver holds.

Builtins that look at the frame which calls them (`locals`, `super`) are answered from its values.
All others see a frame that stands for the one that calls, with its name, file, line and module: the
frames of the driver are hidden.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, final

from braze.compat.python.bytecode import decode
from braze.compat.python.code_objects import FRAME_WALKERS
from braze.compat.python.hidden_frames import hidden_code, hide_frames, stand_in_code


class ExecutableFrame(Protocol):
    """What a handler sees of a frame. call: `call(callable, args, kwargs)`."""

    code: types.CodeType
    globals: dict[str, Any]
    locals: dict[str, Any]
    stack: list[Any]
    call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class WaitingFrame(Protocol):
    """What is asked of a frame that waits for a call. stand_in: what calls in its place, behind the
    offset that it is of."""

    code: types.CodeType
    globals: dict[str, Any]
    offset: int
    stand_in: tuple[int, Callable[..., Any]] | None


@final
class RunNatively(Exception):
    """This instruction, on these values, is left to the interpreter."""


# By identity of a frame's code, and offset: code that stands in for it, and its own, kept alive.
StandIns: TypeAlias = dict[tuple[int, int], tuple[types.CodeType, types.CodeType]]
# Of a deep recursion so many frames are shown: each takes a call, at each break.
_MOST_SHOWN = 64


def called_by(
    known: StandIns, frames: Sequence[WaitingFrame], function: Callable[..., object], *args: object
) -> Any:
    """`function(*args)`, seen from there as called by frames that wait, outermost first."""
    if not frames:
        return function(*args)
    functions: list[Callable[..., Any]] = [
        _stand_in(known, frame) for frame in frames[-_MOST_SHOWN:]
    ]
    functions.append(lambda _: function(*args))
    following = iter(functions)
    return next(following)(following)


def _stand_in(known: StandIns, frame: WaitingFrame) -> Callable[..., object]:
    """What calls in the place of a frame that waits; kept while it waits there."""
    made = frame.stand_in
    if made is None or made[0] != frame.offset:
        key = (id(frame.code), frame.offset)
        found = known.get(key)
        if found is None:
            program = decode(frame.code)
            line = program.instructions[program.index_at[frame.offset]].line
            found = known[key] = stand_in_code(frame.code, line), frame.code
        caller = types.FunctionType(found[0], frame.globals)
        made = frame.stand_in = frame.offset, caller
    return made[1]


def contents_of(value: object) -> list[object]:
    """The value in a cell, as a list that is empty where the cell is."""
    if not isinstance(value, types.CellType):
        return [value]
    try:
        return [value.cell_contents]
    except ValueError:
        return []


def _locals(frame: ExecutableFrame) -> dict[str, object]:
    code = frame.code
    cells = {*code.co_cellvars, *code.co_freevars}
    found: dict[str, Any] = {}
    for name, value in frame.locals.items():
        for content in contents_of(value) if name in cells else [value]:
            found[name] = content
    return found


def _super(frame: ExecutableFrame) -> super:
    code = frame.code
    if not code.co_argcount or "__class__" not in code.co_freevars:
        raise RunNatively
    name = code.co_varnames[0]
    first = frame.locals.get(name)
    if name in code.co_cellvars:
        first = first.cell_contents if isinstance(first, types.CellType) else None
    return super(frame.locals["__class__"].cell_contents, first)


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
    frame: ExecutableFrame, callable: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A call made by the frame; RunNatively where the callable needs the real frame."""
    if any(callable is reader for reader in _ALWAYS_NATIVE):
        raise RunNatively
    if not args and not kwargs and type(callable) in _HASHABLE:
        answer = _WITHOUT_ARGUMENTS.get(callable)
        if answer is not None:
            return answer(frame)
    if args and _makes_classes(callable):
        calling = types.FunctionType(_CALLING, frame.globals)
        return calling(callable, args, kwargs)
    return frame.call(callable, args, kwargs)


# On Python 3.11 a class is of the module whose function runs, hidden or not.
_CALLING = hidden_code((lambda function, args, kwargs: function(*args, **kwargs)).__code__)


def _makes_classes(callable: Any) -> bool:
    """Whether it is the `__new__` of `type`, or a metaclass that has no other."""
    if not issubclass(type(callable), type):
        return callable is type.__new__
    return issubclass(callable, type) and callable.__new__ is type.__new__


hide_frames(__name__)
