"""Who calls, as far as a warning or a log line can see.

    warnings.warn("...", stacklevel=2)      # names the line that its caller was called from

What is called while a frame is captured, and what is put off until its graph ran, is called by
functions that have the file, the line, the name and the module of the program's frames. So the
program's lines are named, and a warning is given once a line of them, as in eager.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from braze.compat import private_names as private
from braze.compat.python.hidden_frames import placed_code

# caller(function, *args, **kwargs) -> function(*args, **kwargs)
Caller: TypeAlias = Callable[..., Any]

_OWN_FILES = (str(Path(__file__).parents[2]), "<braze")


def caller_at(code: types.CodeType, line: int | None, space: dict[str, object]) -> Caller:
    """A function that calls from a line of some code, in the module with these globals."""
    return types.FunctionType(placed_code(_call.__code__, code, line), space)


def outside_callers(count: int) -> list[Caller]:
    """Of the frames that run now as many as there are, innermost first, without Braze's own."""
    found: list[Caller] = []
    frame: types.FrameType | None = private.getframe() if count > 0 else None
    while frame is not None and len(found) < count:
        if not frame.f_code.co_filename.startswith(_OWN_FILES):
            found.append(caller_at(frame.f_code, frame.f_lineno, frame.f_globals))
        frame = frame.f_back
    return found


def outside_place() -> tuple[str, int, str]:
    """(file, line, module) of the innermost frame that runs now and is not Braze's own."""
    frame: types.FrameType | None = private.getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_FILES):
        frame = frame.f_back
    if frame is None:
        return "<unknown>", 1, "<unknown>"
    return frame.f_code.co_filename, frame.f_lineno, str(frame.f_globals.get("__name__"))


def call_from(
    callers: Sequence[Caller], function: Callable[..., object], /, *args: object, **kwargs: object
) -> object:
    """`function(*args, **kwargs)`, called by the first of the callers, that by the second."""
    outermost, *rest = (*reversed(callers), function)
    return outermost(*rest, *args, **kwargs)


def call_later_from(
    callers: Sequence[Caller], count: int, function: Callable[..., object], /, *args: object
) -> object:
    """The same where `count` callers are needed: those that lack run now."""
    return call_from([*callers, *outside_callers(count - len(callers))], function, *args)


# --- private ---------------------------------------------------------------------------------


def _call(function: Any, /, *args: Any, **kwargs: Any) -> object:
    return function(*args, **kwargs)
