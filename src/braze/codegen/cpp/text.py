"""Lines of source text."""

from __future__ import annotations

from collections.abc import Iterable


def indented(lines: Iterable[str], levels: int) -> list[str]:
    """The lines, four spaces a level further in."""
    return ["    " * levels + line if line else line for line in lines]
