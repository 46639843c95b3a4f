"""Code objects that know the lines of their instructions, and not the columns.

Python's compiler notes the first and the last line and column of every instruction: as many bytes
as the instructions themselves in a text of thousands of calls. A traceback shows columns only under
a source line, and a generated text has no file to show it from.

The format (CPython's Objects/locations.md, 3.11 to 3.13): an entry speaks of one to eight units of
code; its first byte has the high bit, four bits of kind and three of the count less one. A kind is
followed by the step from the line before, with the sign in its lowest bit, in groups of six bits.
"""

from __future__ import annotations

import types
from collections import deque
from itertools import groupby
from operator import itemgetter

_LINE = itemgetter(2)  # of (start, end, line)
_UNIT = 2  # bytes of code
_MOST_UNITS = 8
_ONLY_LINE, _NO_PLACE = 13, 15  # kinds


def without_columns(code: types.CodeType) -> types.CodeType:
    """The same code, and in its constants, whose instructions have lines alone."""
    constants = tuple(
        [without_columns(c) if isinstance(c, types.CodeType) else c for c in code.co_consts]
    )
    return code.replace(co_consts=constants, co_linetable=_lines_of(code))


# --- private ---------------------------------------------------------------------------------


def _lines_of(code: types.CodeType) -> bytes:
    table = bytearray()
    line, at = code.co_firstlineno, 0
    # Python 3.11 has a range of an expression of a line; the last one tells where the line ends.
    for here, ranges in groupby(code.co_lines(), _LINE):
        end = deque(ranges, 1).pop()[1]
        kind, step = _NO_PLACE, b""
        if here is not None:
            kind, step = _ONLY_LINE, _signed(here - line)
            line = here
        for left in range((end - at) // _UNIT, 0, -_MOST_UNITS):
            table.append(0x80 | kind << 3 | min(left, _MOST_UNITS) - 1)
            table += step
            step = step and b"\0"  # the rest is on the same line
        at = end
    return bytes(table)


def _signed(number: int) -> bytes:
    left = -number << 1 | 1 if number < 0 else number << 1
    groups = bytearray()
    while left >= 64:
        groups.append(0x40 | left & 63)
        left >>= 6
    groups.append(left)
    return bytes(groups)
