"""Generated code keeps the lines of its instructions, and no columns."""

from __future__ import annotations

import traceback
import types
from collections.abc import Iterator
from typing import Any

import pytest

from braze.compat.python.line_tables import without_columns

FAR = "\n" * 5000
LONG = "[" + ", ".join(f"a + {n}" for n in range(100)) + "]"
TEXTS = [
    "def f(a):\n    return a\n",
    f"def f(a):\n    b = {LONG}\n    return b[a]\n",
    f"def f(a):\n    b = a{FAR}\n    return b(a)\n",
    "def f(a):\n    b = (a +\n\n\n        a.c(\na))\n    for c in b:\n        if c: b(\nc)\n"
    "    return b\n",
    "def f(a):\n    try:\n        with a: a()\n    except ValueError as b:\n        return b\n"
    "    finally: a.b()\n    return [lambda: (yield a) for b in a]\n",
]


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


@pytest.mark.parametrize("text", TEXTS)
def test_lines_stay_and_columns_go(text: str) -> None:
    before = compile(text, "<text>", "exec")
    after = without_columns(before)
    pairs = list(zip(codes(before), codes(after), strict=True))
    assert len(pairs) > 1
    for one, other in pairs:
        lines = [(line, None, None) for line, *_ in one.co_positions()]
        assert [(line, *columns) for line, _, *columns in other.co_positions()] == lines
        assert one.co_code == other.co_code and one.co_name == other.co_name


def test_a_long_line_takes_a_byte_or_two_for_eight_units() -> None:
    (_, before), (_, after) = ([*codes(c)] for c in _both(TEXTS[1]))
    units = len(before.co_code) // 2
    assert len(after.co_linetable) <= 2 * (units // 8 + 4) < len(before.co_linetable) // 2


def test_a_traceback_tells_the_line() -> None:
    made: dict[str, Any] = {}
    exec(_both(f"def f(a):\n    b = 1{FAR}\n    return b / a\n")[1], made)
    with pytest.raises(ZeroDivisionError) as raised:
        made["f"](0)
    assert traceback.extract_tb(raised.value.__traceback__)[-1].lineno == 5003
    assert made["f"](2) == 0.5


def _both(text: str) -> tuple[types.CodeType, types.CodeType]:
    code = compile(text, "<text>", "exec")
    return code, without_columns(code)
