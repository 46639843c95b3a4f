"""A loop of twice as many turns is twice as much work for capture, whatever the loop collects."""

from __future__ import annotations

import random
import sys
from collections import namedtuple
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import braze

Pair = namedtuple("Pair", "tensor number")


class Rows(list[Any]):
    def push(self, row: Any) -> None:
        self.append(row)


def append(x: Any, turn: int, rows: Any, table: Any) -> None:
    rows.append(x + turn)


def append_a_tuple(x: Any, turn: int, rows: Any, table: Any) -> None:
    rows.append((x + turn, turn))


def append_a_named_tuple(x: Any, turn: int, rows: Any, table: Any) -> None:
    rows.append(Pair(x + turn, turn))


def insert_and_read(x: Any, turn: int, rows: Any, table: Any) -> None:
    rows.insert(0, x + len(rows))
    rows[0] = rows[-1] + 1


def extend(x: Any, turn: int, rows: Any, table: Any) -> None:
    rows += [x + turn]
    rows.extend([x])
    rows.pop()


def enter(x: Any, turn: int, rows: Any, table: Any) -> None:
    table[turn] = x + turn
    table.setdefault(turn, table.get(turn))


def look_up(x: Any, turn: int, rows: Any, table: Any) -> None:
    rows.append(x + 1)
    table[turn, 1] = (turn - 1, 1) in table


def look_for(x: Any, turn: int, rows: Any, table: Any) -> None:
    rows.append(turn in rows)


BODIES = [append, append_a_tuple, append_a_named_tuple, insert_and_read, extend, enter, look_up]


@pytest.mark.parametrize("draws", [False, True], ids=["", "beside a generator"])
@pytest.mark.parametrize("body", [*BODIES, look_for])
def test_work_grows_with_the_turns(body: Callable[..., None], draws: bool) -> None:
    numbers = random.Random(0)

    def loop(x: Any, turns: int) -> Any:
        if draws:
            x = x + numbers.random()
        rows: Any = Rows() if body is append else []
        table: Any = {}
        for turn in range(turns):
            body(x, turn, rows, table)
        return x + len(rows) + len(table)

    once, twice, four_times = (_calls(loop, turns) for turns in (100, 200, 400))
    assert four_times - twice < 2.5 * (twice - once)


def _calls(loop: Callable[..., Any], turns: int) -> int:
    """Calls of Python functions while a loop is compiled and run."""
    count = 0

    def counted(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    braze.reset()
    compiled = braze.compile(loop, backend="aot_eager")
    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        compiled(torch.ones(3), turns)
    finally:
        sys.setprofile(before)
    return count
