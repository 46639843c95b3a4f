"""What records no operators is left to run natively within a bound of instructions."""

from __future__ import annotations

import threading
import types
from typing import Any

import pytest
import torch

import braze
from braze.errors import GraphBreakError
from braze.trace import Journal

X = torch.ones(3)
LIMIT = 2000
OPTIONS = {"idle_limit": LIMIT}


def remainders(x: Any, turns: int) -> Any:
    y = x * 2
    total = 0
    for i in range(turns):
        total += i % 3
    return y + total


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def recursive(x: Any, n: int) -> Any:
    return (x * 2 + fibonacci(n)).sin()


def in_a_callee(x: Any, turns: int) -> Any:
    return (remainders(x, turns) * 3).sin()


@pytest.mark.parametrize("function", [remainders, in_a_callee])
def test_long_loops_run_natively(function: Any, journal: Journal) -> None:
    compiled = braze.compile(function, backend="aot_eager", options=OPTIONS)
    for turns in (5000, 5000, 3):
        assert torch.equal(compiled(X, turns), function(X, turns))
    records = journal.records()
    codes = [r.graph_break.code for r in records if r.graph_break is not None]
    assert set(codes) == {"idle-work"}


def test_the_caller_of_a_long_loop_goes_on(journal: Journal) -> None:
    compiled = braze.compile(in_a_callee, backend="aot_eager", options=OPTIONS)
    compiled(X, 5000)
    assert any("sin" in op for record in journal.records() for op in record.ops)


def test_recursion_runs_natively(journal: Journal) -> None:
    compiled = braze.compile(recursive, backend="aot_eager", options=OPTIONS)
    assert torch.equal(compiled(X, 15), recursive(X, 15))
    assert any("sin" in op for record in journal.records() for op in record.ops)
    assert len(journal.records()) <= 10


def test_loops_with_operators_are_unrolled(journal: Journal) -> None:
    def growing(x: Any) -> Any:
        for i in range(LIMIT):
            x = x + i
        return x

    compiled = braze.compile(growing, backend="aot_eager", fullgraph=True, options=OPTIONS)
    assert torch.equal(compiled(X), growing(X))
    assert len(journal.records()) == 1


def test_one_graph_of_a_long_computation_is_refused() -> None:
    compiled = braze.compile(remainders, backend="aot_eager", fullgraph=True, options=OPTIONS)
    with pytest.raises(GraphBreakError, match="raise the option idle_limit"):
        compiled(X, 5000)


@pytest.mark.filterwarnings("ignore:.*a guard does not hold")
def test_waiting_for_a_flag_ends() -> None:
    def waits(x: Any, state: Any) -> Any:
        while not state.done:
            pass
        return x + 1

    state = types.SimpleNamespace(done=False)
    compiled = braze.compile(waits, backend="aot_eager")
    threading.Timer(0.5, setattr, (state, "done", True)).start()
    assert torch.equal(compiled(X, state), X + 1)


@pytest.mark.filterwarnings("ignore:.*compiled 8 times")
def test_polling_runs_natively(journal: Journal) -> None:
    def polls(x: Any, items: Any) -> Any:
        turns = 0
        while turns < 2000:
            braze.graph_break()
            turns += 1
        return x + turns

    compiled = braze.compile(polls, backend="aot_eager")
    assert torch.equal(compiled(X, []), X + 2000)
    assert [why.code for why in journal.left_to_eager()] == ["idle-breaks"]
