"""A failing program made small: steps, statements and expressions dropped while it fails alike."""

from __future__ import annotations

import re
from typing import Any, cast

from tests.fuzz.reference.check import Found, check
from tests.fuzz.reference.program import Program
from tests.fuzz.reference.vocabulary import OPERATORS
from tests.fuzz.shrink import shrink


def shrunk(program: Program, found: Found, seconds: float) -> tuple[Program, Found]:
    """The smallest program that is found in so many seconds, and what differs in it."""

    def fails(candidate: Any) -> bool:
        other = check(candidate).found
        return other is not None and other.key == found.key

    smaller = cast(Program, shrink(cast(Any, program), fails, seconds))
    return smaller, check(smaller).found or found


def idioms_of(program: Program) -> list[str]:
    """The idioms of a program, but for plain operators."""
    return sorted({name for name in program.idioms.values() if not _is_operator(name)})


def idioms_left(program: Program) -> list[str]:
    """The idioms whose names a shrunk program still has, but for plain operators."""
    text = program.text + "\n".join(program.steps)
    numbers = {int(number) for number in re.findall(r"(?<=[A-Za-z_])(\d+)[a-z]?\b", text)}
    names = {program.idioms[number] for number in numbers if number in program.idioms}
    from_operators = {name for name in names if not _is_operator(name)}
    return sorted(from_operators or names)


def _is_operator(name: str) -> bool:
    from tests.fuzz.reference.vocabulary import OPERATORS

    return any(one.name == name for one in OPERATORS)
