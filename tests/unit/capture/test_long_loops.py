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
from braze.errors import GraphBreakError
from braze.trace import Journal

X = torch.ones(3)

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


def extend_by_lists(x: Any, turn: int, rows: Any, table: Any) -> None:
    rows.extend([[x], [turn], [x]])
    rows.pop()


def enter(x: Any, turn: int, rows: Any, table: Any) -> None:
    table[turn] = x + turn
    table.setdefault(turn, table.get(turn))


def look_up(x: Any, turn: int, rows: Any, table: Any) -> None:
    rows.append(x + 1)
    table[turn, 1] = (turn - 1, 1) in table


def look_for(x: Any, turn: int, rows: Any, table: Any) -> None:
    rows.append(turn in rows)


BODIES = [
    append,
    append_a_tuple,
    append_a_named_tuple,
    insert_and_read,
    extend,
    extend_by_lists,
    enter,
    look_up,
]


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

    _calls(loop, 400)  # what is remembered of operators for good is the same for all three
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


# --- loops that are not unrolled ------------------------------------------------------------------

LIMIT = 500
TURNS = 600


def counted(x: Any, turns: int) -> Any:
    for turn in range(turns):
        x = x * 0.5 + turn
    return x


def of_items(x: Any, turns: int) -> Any:
    rows = []
    for turn, scale in enumerate([0.5, 0.25] * (turns // 2)):
        rows.append(x * scale + turn)
    return rows[-1], len(rows)


def while_it_holds(x: Any, turns: int) -> Any:
    turn = 0
    while turn < turns:
        turn += 1
        if turn % 3 == 0:
            continue
        x = x * 0.5 + turn
    return x


def _step(mean: Any, x: Any) -> Any:
    for scale in (0.9, 0.8):
        mean = mean * scale + x
    return mean


def with_a_loop_in_each_turn(x: Any, turns: int) -> Any:
    mean = x
    for _ in range(turns):
        mean = _step(mean, x)
    return mean


def in_a_callee(x: Any, turns: int) -> Any:
    return counted(x * 2, turns) + 1


def comprehension(x: Any, turns: int) -> Any:
    return torch.stack([x * turn for turn in range(turns)]).sum(0)


def generator(x: Any, turns: int) -> Any:
    return sum(x * turn for turn in range(turns))


def raising_at_the_end(x: Any, turns: int) -> Any:
    try:
        for turn in range(turns + 1):
            if turn == turns:
                raise KeyError(turn)
            x = x * 0.5 + turn
    except KeyError as error:
        return x, error.args
    return None


LOOPS = [
    counted,
    of_items,
    while_it_holds,
    with_a_loop_in_each_turn,
    in_a_callee,
    comprehension,
    generator,
    raising_at_the_end,
]


@pytest.mark.filterwarnings("ignore:.*compiled 8 times")
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_turns_of_a_long_loop_are_graphs_of_their_own(
    loop: Callable[..., Any], journal: Journal
) -> None:
    compiled = braze.compile(loop, backend="aot_eager", options={"unroll_limit": LIMIT})
    for start in (1.0, 2.0):
        x = torch.full((3,), start)
        torch.testing.assert_close(compiled(x, TURNS), loop(x, TURNS))
    records = journal.records()
    assert len(records) <= 16
    assert {r.graph_break.code for r in records if r.graph_break is not None} == {"long-loop"}
    assert max(len(record.ops) for record in records) <= LIMIT


def test_a_loop_within_the_limit_is_one_graph(journal: Journal) -> None:
    options = {"unroll_limit": 2 * TURNS}
    compiled = braze.compile(counted, backend="aot_eager", fullgraph=True, options=options)
    torch.testing.assert_close(compiled(X, TURNS), counted(X, TURNS))
    assert len(journal.records()) == 1


def test_one_graph_of_a_long_loop_is_refused() -> None:
    options = {"unroll_limit": LIMIT}
    compiled = braze.compile(counted, backend="aot_eager", fullgraph=True, options=options)
    with pytest.raises(GraphBreakError, match="raise the option unroll_limit"):
        compiled(X, TURNS)
