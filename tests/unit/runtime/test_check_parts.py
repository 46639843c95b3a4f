"""Checks of guards in parts."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import Guard, GuardKind
from braze.ir.captured.source import LocalSource
from braze.runtime.guards.compile import compile_guards
from braze.runtime.guards.split_functions import LONGEST_CHECK, check_in_parts

LINES = [
    "t0 = L['a']",
    "if not (t0 > 0): return None",
    "t1 = L['b']",
    "for tensor in (t0, t1):",
    "    if not (tensor < 9): return None",
    "t2 = t0 + t1",
    "r0 = t2 if t2 else None",
    "if not (t1 != 5): return None",
    "if not (frame == 'frame'): return None",
    "t3 = r0 * t0",
]


def check(longest: int, **found: int) -> Any:
    functions, lines = check_in_parts(LINES, "[t0, t3]", "None", longest)
    names: dict[str, Any] = {}
    for text in functions:
        exec(text, names)
    text = "\n".join(["def check(L, frame):", *(f"    {line}" for line in lines)])
    exec(text, names)
    return names["check"](found, "frame")


@pytest.mark.parametrize("longest", range(1, len(LINES) + 2))
def test_parts_ask_what_one_function_asks(longest: int) -> None:
    assert check(longest, a=1, b=2) == [1, 3]
    assert check(longest, a=0, b=2) is None
    assert check(longest, a=1, b=9) is None
    assert check(longest, a=1, b=5) is None


def test_a_part_is_handed_what_later_ones_read() -> None:
    functions, lines = check_in_parts(LINES, "[t0, t3]", "None", 5)
    assert len(functions) == 1
    assert "held += (t0, t1, )" in functions[0]
    assert lines[:3] == [
        "held = []",
        "if not check0(L, frame, held): return None",
        "t0, t1, = held",
    ]
    assert all(len(ast.parse(text).body) == 1 for text in functions)


def test_a_short_check_is_one_function() -> None:
    assert check_in_parts(LINES, "[t0]", "None") == ((), [*LINES, "return [t0]"])


def test_a_check_longer_than_a_part() -> None:
    number = LONGEST_CHECK + 10
    sources = [LocalSource(f"x{place}") for place in range(number)]
    asked = compile_guards([Guard(source, GuardKind.TYPE_MATCH, int) for source in sources])
    assert "held" in asked.__braze_source__  # type: ignore[attr-defined]

    def values(**other: Any) -> FrameValues:
        found = {f"x{place}": place for place in range(number)}
        return FrameValues({**found, **other}, {}, [])

    assert asked(values())
    for place in (0, LONGEST_CHECK // 2, number - 1):
        assert not asked(values(**{f"x{place}": "text"}))
    short = values()
    del short.locals["x3"]
    assert not asked(short)
