"""`braze.compile(f)(x)` inside of compiled code: the call is part of the frame's own graph, and
what leaves the frame is a compiled function, made at each call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze

X = torch.arange(3.0)


def double(x: torch.Tensor, by: Any = None) -> torch.Tensor:
    return x * (2 if by is None else by)


def _called(x: torch.Tensor) -> torch.Tensor:
    return braze.compile(double, backend="eager")(x) + 1


def _closing(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()

    def add(z: torch.Tensor) -> torch.Tensor:
        return y + z

    return braze.compile(add, dynamic=True, fullgraph=True)(x)


def _disabled(x: torch.Tensor) -> torch.Tensor:
    return braze.compile(double, disable=True)(x, by=3)


@pytest.mark.parametrize("program", [_called, _closing, _disabled])
def test_calls_are_of_one_graph(program: Any) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = braze.compile(program, backend=backend, fullgraph=True)
    for x in (X, X + 1):
        torch.testing.assert_close(compiled(x), program(x))
    assert len(graphs) == 1


def test_it_leaves_as_a_compiled_function() -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, braze.compile(double, backend="eager")

    compiled = braze.compile(program, backend="eager", fullgraph=True)
    (first, one), (_, two) = compiled(X), compiled(X)
    assert torch.equal(first, X + 1) and torch.equal(one(X), X * 2)
    assert one is not two and type(one) is type(program(X)[1]) and one.__wrapped__ is double


def test_its_attributes_break() -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, braze.compile(double).__wrapped__

    found = braze.compile(program, backend="eager")(X)
    assert torch.equal(found[0], X + 1) and found[1] is double


def test_wrong_options_raise_as_in_eager() -> None:
    def program(x: torch.Tensor) -> Any:
        return braze.compile(double, mode="no such mode")(x)

    with pytest.raises(braze.exc.InvalidOption):
        braze.compile(program, backend="eager")(X)
