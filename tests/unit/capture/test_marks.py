"""What users marked: capture leaves it out, takes it whole, or sees through it."""

from __future__ import annotations

import functools
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


class Scaled:
    """A callable object; `calls` counts those that Python code made."""

    def __init__(self, scale):
        self.scale, self.calls = scale, 0

    def __call__(self, x):
        self.calls += 1
        return (x * self.scale).sin()


_OBJECTS = {
    "instance": lambda: Scaled(2.0),
    "partial": lambda: functools.partial(torch.add, other=2.0),
    "partial of Python": lambda: functools.partial(lambda x, k: x * k, k=3.0),
}


@pytest.mark.parametrize("kind", _OBJECTS)
def test_marked_objects_are_whole_calls(kind):
    marked = braze.allow_in_graph(_OBJECTS[kind]())
    plain = _OBJECTS[kind]()
    captured, result = captured_once(lambda x: marked(x) + 1, X)
    assert same(result, plain(X) + 1)
    assert captured.calls[0].target is marked


@pytest.mark.parametrize("kind", [*_OBJECTS, "module"])
def test_disallowed_objects_break_the_graph(kind):
    made = _OBJECTS.get(kind, lambda: torch.nn.Linear(3, 3))
    owner = types.SimpleNamespace(call=braze.disallow_in_graph(made()))
    captured = outcome(lambda x: owner.call(x + 1), X)
    assert isinstance(captured.exit, Break)
    assert captured.exit.reason.code == "disallowed"


def test_mark_is_of_one_object():
    """Another object in the place of a marked one is captured as what it is."""
    owner = types.SimpleNamespace(call=braze.allow_in_graph(Scaled(2.0)))
    graphs = []
    compiled = braze.compile(lambda x: owner.call(x + 1) * 2, backend=_kept(graphs))
    for scale in (2.0, 5.0):
        assert torch.equal(compiled(X), ((X + 1) * scale).sin() * 2)
        assert len(graphs[-1].graph.find_nodes(op="call_method", target="sin")) == (scale == 5.0)
        owner.call = Scaled(5.0)
    assert len(graphs) == 2


def _kept(graphs):
    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    return backend


def test_constant_objects_are_called_once():
    counted = types.SimpleNamespace(calls=0)

    class Settings:
        def __call__(self):
            counted.calls += 1
            return 3.0

    marked = braze.assume_constant_result(Settings())
    compiled = braze.compile(lambda x: x * marked(), backend="eager")
    assert torch.equal(compiled(X), X * 3)
    assert torch.equal(compiled(X * 2), X * 6)
    assert counted.calls == 1
