"""Exceptions that a handler of a signal raised while a whole frame was compiled or its graph ran.

The graph stands for the frame's lines, so the exception is due at one of them: the frame runs by
its own code, which raises it at the first line of a `try` or a `with`. A signal comes at any time,
so that eager might have had it there as well, and the program's handlers run.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from braze.compat.python.hidden_frames import hide_frames
from braze.compat.python.stub_gaps import exception_table_of
from braze.compile_records import LeftToEager
from braze.runtime.dispatch.eager_fallback import Tally, leave_to_eager


def raise_within(
    tally: Tally,
    error: BaseException,
    function: types.FunctionType,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """What `function(*args, **kwargs)` returns where it handles `error`, which a handler of a
    signal raised. Raises `error` at once where no line of the function is in a `try` or a `with`,
    or where a debugger traces the thread."""
    code = function.__code__
    regions = exception_table_of(code)
    if not regions or sys.gettrace() is not None:
        raise error

    def enter(frame: types.FrameType, event: str, argument: object) -> Any:
        return at_line if frame.f_code is code else None

    def at_line(frame: types.FrameType, event: str, argument: object) -> Callable[..., object]:
        if event == "line" and any(r.start <= frame.f_lasti < r.end for r in regions):
            sys.settrace(None)
            raise error
        return at_line

    what = f"a handler of a signal raised {type(error).__name__}"
    where = f"{code.co_filename}:{code.co_firstlineno}"
    why = LeftToEager("signal", what, "", where, code.co_qualname, is_asked_for=True)
    try:
        sys.settrace(enter)
        return leave_to_eager(tally, why, function, args, kwargs)
    finally:
        sys.settrace(None)


hide_frames(__name__)
