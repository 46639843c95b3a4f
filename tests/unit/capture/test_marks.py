"""What users marked: capture leaves it out, takes it whole, or sees through it."""

from __future__ import annotations

import types

import pytest
import torch

import braze
from braze.errors import GraphBreakError
from braze.ir.captured.frame import Break
from braze.marks import MARKS, Mark
from tests.unit.capture.replay import captured_once, outcome, same

X = torch.ones(3)


def disabled(x):
    return x * 2


def whole(x):
    return x.sin().cos()


def settings():
    return {"scale": 3.0}


def constant_tensor():
    return torch.full((3,), 7.0)


class Compiled:
    def __init__(self, function):
        self.__wrapped__ = function

    def __call__(self, x):
        raise AssertionError("not to be called")


compiled = Compiled(whole)
MARKS.put(disabled, Mark.DISABLE, "said so")
MARKS.put(whole, Mark.ALLOW_IN_GRAPH)
MARKS.put(settings, Mark.ASSUME_CONSTANT)
MARKS.put(constant_tensor, Mark.ASSUME_CONSTANT)
MARKS.put(compiled, Mark.COMPILED)


def test_disabled_breaks():
    captured = outcome(lambda x: disabled(x + 1), X)
    assert isinstance(captured.exit, Break)
    assert captured.exit.reason.code == "disabled"


def test_allowed_in_graph_is_one_call():
    captured, result = captured_once(lambda x: whole(x), X)
    assert same(result, whole(X))
    assert [call.target for call in captured.calls] == [whole]


def test_constant_results_are_kept():
    def f(x):
        return x * settings()["scale"] + constant_tensor()

    _, result = captured_once(f, X)
    assert same(result, f(X))


def test_compiled_callee_is_seen_through():
    _, result = captured_once(lambda x: compiled(x), X)
    assert same(result, whole(X))


# --- functions that are let into the graph for their effects alone -------------------------------

SEEN: list[object] = []


def note() -> None:
    SEEN.append((torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()))


def test_effects_come_at_each_call(journal) -> None:
    marked = types.FunctionType(note.__code__, globals(), "marked")
    braze.allow_in_graph(marked)

    def program(x):
        marked()
        torch.set_grad_enabled(False)
        return x + 1

    compiled = braze.compile(program, backend="eager", fullgraph=True)
    for enabled in (True, False, True):
        found = []
        for function in (program, compiled):
            SEEN.clear()
            with torch.set_grad_enabled(enabled):
                function(X)
            found.append([*SEEN])
        assert found[1] == found[0] == [(enabled, False)]


def test_effects_come_under_the_modes_of_the_call() -> None:
    marked = types.FunctionType(note.__code__, globals(), "marked")
    braze.allow_in_graph(marked)

    def program(x):
        with torch.no_grad():
            marked()
        with torch.enable_grad():
            marked()
            return x + 1

    compiled = braze.compile(program, backend="eager", fullgraph=True)
    for enabled in (True, False, True):
        found = []
        for function in (program, compiled):
            SEEN.clear()
            with torch.set_grad_enabled(enabled):
                function(X)
                assert torch.is_grad_enabled() is enabled
            found.append([*SEEN])
        assert found[1] == found[0] == [(False, False), (True, False)]


def test_effects_that_would_be_seen_late_break() -> None:
    count = 0

    @braze.allow_in_graph
    def marked() -> None:
        nonlocal count
        count += 1

    def reads(x):
        marked()
        return x + count

    def writes(x):
        nonlocal count
        count = 5
        marked()
        return x

    for program in (reads, writes):
        found = []
        for function in (program, braze.compile(program, backend="eager")):
            count = 0
            results = [function(X) for _ in range(3)]
            found.append((count, results))
        assert found[0][0] == found[1][0]
        torch.testing.assert_close(found[1][1], found[0][1])
        with pytest.raises(GraphBreakError):
            braze.compile(program, backend="eager", fullgraph=True)(X)
