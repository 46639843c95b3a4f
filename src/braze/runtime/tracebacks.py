"""Tracebacks as the user's program would show them, without the frames of the driver."""

from __future__ import annotations

import types
from pathlib import Path
from typing import TypeVar

_HERE = str(Path(__file__).parent)
_Exception = TypeVar("_Exception", bound=BaseException)


def without_driver_frames(exception: _Exception) -> _Exception:
    """The same exception, its traceback without frames of this package. The frame that raises it
    again adds itself once more."""
    kept = []
    entry = exception.__traceback__
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(_HERE):
            kept.append(entry)
        entry = entry.tb_next
    chain: types.TracebackType | None = None
    for entry in reversed(kept):
        line = entry.tb_lineno
        # An interrupt may fall on an instruction without a line: -1 stands for that.
        line = -1 if line is None else line  # type: ignore[redundant-expr]
        chain = types.TracebackType(chain, entry.tb_frame, entry.tb_lasti, line)
    return exception.with_traceback(chain)
