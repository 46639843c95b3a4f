"""`torch.compiler.disable(function)` in a frame: a new function, calls of which break the graph."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

import braze

X = torch.arange(3.0)


def helper(x: torch.Tensor) -> torch.Tensor:
    return x.cos() if torch.compiler.is_compiling() else x.sin()


class Scale:
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


SCALE = Scale()


def called(x: torch.Tensor) -> Any:
    return torch.compiler.disable(helper)(x * 2) + 1


def called_of_a_closure(x: torch.Tensor) -> Any:
    def local(t: torch.Tensor) -> torch.Tensor:
        return t + x

    return torch.compiler.disable(local)(x * 2) + 1


def called_of_a_method(x: torch.Tensor) -> Any:
    return torch.compiler.disable(SCALE.method, reason="tried")(x * 2) + 1


def called_from_a_list(x: torch.Tensor) -> Any:
    return [torch._dynamo.disable(helper, True)][0](x * 2) + 1


@pytest.mark.parametrize(
    "program", [called, called_of_a_closure, called_of_a_method, called_from_a_list]
)
def test_a_call_breaks_once(program: Any) -> None:
    braze.reset()
    compiled = braze.compile(program)
    for _ in range(12):
        assert torch.equal(compiled(X), program(X))
    (row,) = braze.status()
    assert (row.entries, row.recompiles, row.calls_left, len(row.breaks)) == (2, 0, 0, 1)


def questions(x: torch.Tensor) -> Any:
    made = torch.compiler.disable(helper)
    kinds = callable(made), isinstance(made, types.FunctionType), type(made).__name__
    return kinds, made.__name__, made is made, made is helper, made == helper, bool(made), x + 1


def test_questions_are_answered_as_eager_does() -> None:
    explain = braze.explain(questions)
    for graphs in (1, 0):
        explanation = explain(X)
        assert explanation.result[:-1] == questions(X)[:-1]
        assert torch.equal(explanation.result[-1], X + 1)
        assert (explanation.graph_count, explanation.break_count) == (graphs, 0)


def returned(x: torch.Tensor) -> Any:
    made = torch.compiler.disable(helper)
    return made, [made], x + 1


def test_each_call_returns_another() -> None:
    compiled = braze.compile(returned, fullgraph=True)
    made, (again,), _ = compiled(X)
    assert made is again and compiled(X)[0] is not made
    assert torch.equal(braze.compile(lambda x: made(x) + 1)(X), helper(X) + 1)


def written(x: torch.Tensor) -> Any:
    made = torch.compiler.disable(helper)
    made.tag = "mine"
    return made, x + 1


def test_attributes_are_kept() -> None:
    assert braze.compile(written)(X)[0].tag == "mine"
