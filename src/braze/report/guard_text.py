"""Guards as text: those of an export, and which guard of which entry failed."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import final

from braze.ir.captured.guard import Guard
from braze.ir.captured.guard_tree import build_guard_tree
from braze.ir.captured.print_guards import format_guard_tree
from braze.ir.origin import Origin
from braze.kept_texts import SizeNote


@final
class PrintedGuards(tuple[Guard, ...]):
    """Guards that print as their tree."""

    __slots__ = ()

    def __str__(self) -> str:
        return format_guard_tree(build_guard_tree(self))


def format_failures(function: str, failures: Sequence[object]) -> str:
    """Why a function is compiled again: the guard of each entry that failed."""
    lines = [f"  {number}: {failure}" for number, failure in enumerate(failures)]
    entries = "entry" if len(lines) == 1 else "entries"
    return "\n".join([f"{function} again: {len(lines)} {entries} failed by", *lines])


def size_note(text: str, place: Origin) -> SizeNote:
    """What became of a size, with the program's line that made or guarded it."""
    source = linecache.getline(place.file, place.line).strip()
    return SizeNote(text, f"{place.file}:{place.line}", place.function, source)
