"""Launch programs in parts."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from braze.runtime.launch.program_text import LaunchProgram
from braze.runtime.launch.split_program import LONGEST_PART, in_parts

LINES = (
    "x0, x1, = inputs",
    "inputs.clear()",
    "n_s0 = size(x0)",
    "t0 = add(x0, x1)",
    "del x0",
    "see('after x0')",
    "_, t1, = both(t0, x1)",
    "if size(t1) != n_s0: t1 = add(t1, t1)",
    "del t0, x1",
    "see('after t0')",
    "t2 = add(t1, t1)",
    "t1 = add(t2, t1)",
    "del t2",
    "see('after t2')",
    "t3 = add(t1, t1)",
    "return [t1, t3]",
)


class Thing:
    """What a tensor is to a launch program; says when it ends."""

    def __init__(self, number: int, ended: list[Any]) -> None:
        self.number, self.ended = number, ended

    def __del__(self) -> None:
        self.ended.append(self.number)


def run(parts: tuple[str, ...]) -> tuple[list[int], list[Any]]:
    ended: list[Any] = []

    def both(a: Thing, b: Thing) -> tuple[Thing, Thing]:
        return Thing(a.number - b.number, ended), Thing(a.number * b.number, ended)

    names: dict[str, Any] = {
        "add": lambda a, b: Thing(a.number + b.number, ended),
        "both": both,
        "size": lambda a: a.number % 3,
        "see": ended.append,
    }
    for part in parts:
        exec(part, names)
    results = names["call"]([Thing(2, ended), Thing(3, ended)])
    return [result.number for result in results], list(ended)


@pytest.mark.parametrize("longest", [2, 3, 5, 15])
def test_parts_do_the_same_and_let_go_as_early(longest: int) -> None:
    whole, parts = in_parts(LINES), in_parts(LINES, longest)
    assert len(whole) == 1 and len(parts) == -(-len(LINES) // longest) + 1
    numbers, ended = run(parts)
    expected, ended_in_whole = run(whole)
    assert numbers == expected
    for label in ("after x0", "after t0", "after t2"):
        before = ended_in_whole[: ended_in_whole.index(label)]
        assert set(before) <= set(ended[: ended.index(label)])


def test_no_function_is_long() -> None:
    lines = [f"t{n} = f(t{n - 1})" for n in range(1, 3000)]
    parts = in_parts(["t0, = inputs", *lines, "return [t2999]"])
    longest = max(len(ast.parse(part).body[0].body) for part in parts)  # type: ignore[attr-defined]
    assert longest <= LONGEST_PART + 3


def test_text_is_compiled_once() -> None:
    """A recording has the launch program with other names; Python compiles it once."""
    program = LaunchProgram(("def call(inputs):\n    return [word, *inputs]\n",), {}, ())
    first, second = program.define({"word": 1}), program.define({"word": 2})
    assert (first([3]), second([3])) == ([1, 3], [2, 3])
    assert first.__code__ is second.__code__
