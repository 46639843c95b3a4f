"""Names of the standard library that type checkers' stubs leave out, with their types."""

from __future__ import annotations

import copyreg
import dis
import opcode
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


class ExceptionTableEntry(Protocol):
    """A row of a code object's exception table; offsets in bytes."""

    @property
    def start(self) -> int:
        """Where the region begins."""

    @property
    def end(self) -> int:
        """Where it ends."""

    @property
    def target(self) -> int:
        """Where its handler begins."""

    @property
    def depth(self) -> int:
        """How much of the stack the handler keeps."""

    @property
    def lasti(self) -> bool:
        """Whether the handler gets the offset of the instruction that raised."""


exception_table_of: Callable[[types.CodeType], Sequence[ExceptionTableEntry]] = operator.attrgetter(
    "_parse_exception_table"
)(dis)
# Cache units behind an instruction: by opcode in 3.11 and 3.12, from 3.13 by name.
INLINE_CACHE_ENTRIES: Sequence[int] | Mapping[str, int] = operator.attrgetter(
    "_inline_cache_entries"
)(dis)
# By the arguments of LOAD_COMMON_CONSTANT; empty before Python 3.14.
COMMON_CONSTANTS: Sequence[object] = getattr(dis, "_common_constants", ())
# By the arguments of BINARY_OP: (name, sign).
BINARY_OPERATORS: Sequence[tuple[str, str]] = operator.attrgetter("_nb_ops")(opcode)
# A field of instructions from Python 3.13 on.
line_number_of: Callable[[dis.Instruction], int | None] = operator.attrgetter("line_number")
# What `object.__reduce_ex__` names as the maker of an instance, by the arguments of `__new__`.
NEW_OBJECT: Callable[..., object] = operator.attrgetter("__newobj__")(copyreg)
NEW_OBJECT_WITH_KEYWORDS: Callable[..., object] = operator.attrgetter("__newobj_ex__")(copyreg)
