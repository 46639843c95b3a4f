"""Tracebacks as the user's program would show them, without the frames of the driver."""

from __future__ import annotations

import types
from pathlib import Path
from typing import TypeVar

from braze.compat.python import opcode_semantics as meanings
from braze.compat.python.code_objects import position_of
from braze.compat.python.hidden_frames import is_stand_in
from braze.errors import Unsupported

# Where frames of the driver have their code: in this package, and where it shares meanings.
_HERE = (str(Path(__file__).parents[1]), meanings.__file__)
_Exception = TypeVar("_Exception", bound=BaseException)


def _raise(exception: BaseException) -> None:
    raise exception


def give_traceback(exception: object, code: types.CodeType, offset: int) -> None:
    """Let an exception that was raised while its frame was captured have a traceback, as one that
    is being handled must: WITH_EXCEPT_START passes it on unchecked."""
    if not isinstance(exception, BaseException) or exception.__traceback__ is not None:
        return
    here = _raise.__code__.replace(
        co_filename=code.co_filename,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_firstlineno=(position_of(code, offset)[0] or code.co_firstlineno) - 1,
    )
    try:
        types.FunctionType(here, {})(exception)
    except BaseException as raised:
        entry = raised.__traceback__
        assert entry is not None
        raised.__traceback__ = entry.tb_next


def without_driver_frames(exception: _Exception, known: int = 0) -> _Exception:
    """The same exception, its traceback without frames of the driver. The frame that raises it
    again adds itself once more. known: identity of the entry where a part begins that has no such
    frames: a traceback has an entry for each frame that is left, so each must not walk over all of
    them. It is not held: it would keep the frames' values. An error that says where the program
    cannot be compiled has no frames at all: its message has the user's."""
    if isinstance(exception, Unsupported) and not exception.shows_frames:
        return exception.with_traceback(None)
    kept: list[types.TracebackType] = []
    since: list[types.TracebackType] = []
    chain = entry = exception.__traceback__
    while entry is not None and id(entry) != known:
        code = entry.tb_frame.f_code
        if code.co_filename.startswith(_HERE) or is_stand_in(code):
            kept += since
            since.clear()
            chain = entry.tb_next
        else:
            since.append(entry)
        entry = entry.tb_next
    for entry in reversed(kept):
        line = entry.tb_lineno
        # An interrupt may fall on an instruction without a line: -1 stands for that.
        line = -1 if line is None else line
        chain = types.TracebackType(chain, entry.tb_frame, entry.tb_lasti, line)
    return exception.with_traceback(chain)
