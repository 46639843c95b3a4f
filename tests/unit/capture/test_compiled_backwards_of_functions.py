"""The backward of a custom autograd function, compiled by itself: what it reads of `ctx`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.errors import GraphBreakError


def _made(compile_it: Callable[[Any], Any]) -> Any:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
            result = x.exp() * y * factor
            ctx.save_for_backward(x, y, result, None)
            ctx.factor = factor
            return result

        @staticmethod
        @compile_it
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            x, _, result, nothing = ctx.saved_tensors
            assert nothing is None
            for_x = gradient * result if ctx.needs_input_grad[0] else None
            for_y = gradient * x.exp() * ctx.factor if ctx.needs_input_grad[1] else None
            return for_x, for_y, None

    return Scaled


CASES: dict[str, tuple[tuple[int, ...], bool, bool, float]] = {
    "both": ((3,), True, True, 2.0),
    "first": ((3,), True, False, 2.0),
    "second": ((3,), False, True, 2.0),
    "other factor": ((3,), True, True, 3.0),
    "other sizes": ((2, 4), True, True, 2.0),
}


def _gradients(function: Any, case: str) -> list[Any]:
    shape, first, second, factor = CASES[case]
    x = torch.linspace(0, 1, torch.Size(shape).numel()).reshape(shape).requires_grad_(first)
    y = (x.detach() + 1).requires_grad_(second)
    function.apply(x, y, factor).sum().backward()
    return [None if leaf.grad is None else leaf.grad.tolist() for leaf in (x, y)]


def test_what_a_backward_reads_of_its_context() -> None:
    eager = _made(lambda function: function)
    ours = _made(lambda function: braze.compile(function, fullgraph=True, backend="eager"))
    for case in [*CASES, *CASES]:
        assert _gradients(ours, case) == _gradients(eager, case), case


def test_one_graph_for_many_nodes() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    ours = _made(lambda function: braze.compile(function, fullgraph=True, backend=backend))
    for _ in range(4):
        _gradients(ours, "both")
    assert len(graphs) == 1


def test_used_up_tensors() -> None:
    ours = _made(lambda function: braze.compile(function, fullgraph=True, backend="eager"))
    x = torch.ones(3, requires_grad=True)
    loss = ours.apply(x, x * 2, 1.0).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_second_derivatives() -> None:
    found = []
    for wrap in (lambda f: f, lambda f: braze.compile(f, fullgraph=True, backend="eager")):
        function = _made(wrap)
        x = torch.tensor([0.5, 1.0], requires_grad=True)
        (first,) = torch.autograd.grad(function.apply(x, x * 2, 1.5).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        found.append((first.tolist(), second.tolist()))
    assert found[0] == found[1]


def test_hooks_on_saved_tensors_break() -> None:
    unpacked: list[int] = []

    def unpack(saved: torch.Tensor) -> torch.Tensor:
        unpacked.append(1)
        return saved

    counts, gradients = [], []
    for wrap in (lambda f: f, lambda f: braze.compile(f, backend="eager")):
        function = _made(wrap)
        unpacked.clear()
        x = torch.ones(3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
            result = function.apply(x, x.detach() * 2, 1.0)
        result.sum().backward()
        counts.append(len(unpacked))
        gradients.append(x.grad.tolist() if x.grad is not None else None)
    assert gradients[0] == gradients[1]
    assert counts[0] == counts[1]
    function = _made(lambda f: braze.compile(f, backend="eager", fullgraph=True))
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
        result = function.apply(x, x.detach() * 2, 1.0)
    with pytest.raises(GraphBreakError, match="saved_tensors"):
        result.sum().backward()
