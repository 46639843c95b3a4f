"""What users marked: capture leaves it out, takes it whole, or sees through it."""

from __future__ import annotations

import torch

from braze.ir.frame import Break
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
