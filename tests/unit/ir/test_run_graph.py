"""The executors: values, gradients, write-backs and aliases, interpreted and compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from braze.ir.graphs.print_graph import parse_graph, print_graph
from braze.ir.graphs.run_graph import compile_graph_runner, run_graph
from braze.ir.graphs.verify_graph import verify_graph
from braze.tracing import FinishedTrace, Tracer, Untraceable

RUNNERS = {
    "interpreted": run_graph,
    "compiled": lambda graph, inputs: compile_graph_runner(graph)(inputs),
    "printed": lambda graph, inputs: run_graph(parse_graph(print_graph(graph)), inputs),
}


def trace(
    function: Callable[..., Any], *inputs: torch.Tensor
) -> tuple[FinishedTrace, list[torch.Tensor]]:
    tracer = Tracer()
    with tracer:
        results = function(*[tracer.add_input(t) for t in inputs])
    finished = tracer.finish([results] if isinstance(results, torch.Tensor) else list(results))
    verify_graph(finished.graph)
    return finished, [inputs[i] for i in finished.inputs]


def frozen_write(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        w.mul_(2)
    return (w * x).sum()


def detached_write(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = w * x
    y.detach()[0].mul_(3)
    return (y * y).sum()


def view_write(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    buffer = torch.zeros(4, 3)
    rows = buffer[1:3]
    rows[0].copy_(w[0] * 2)
    rows[1] = x[1] * w[2]
    return (buffer * buffer).sum() + (buffer[2] * w[3]).sum()


def no_grad_part(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = (w * x).mean()
    return (w * scale).sum() + (w.detach() * x).sum()


def chain(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = F.gelu(F.layer_norm(w @ x.t(), (4,)))
    y = torch.cat([y, y.relu_()]).split(3)
    return torch.log_softmax(y[0], dim=-1).max(dim=1)[0].sum() + y[1].norm()


def non_leaf_write(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = w * 2
    y.add_(x)
    y[0].zero_()
    return y.sum()


PROGRAMS = [frozen_write, detached_write, view_write, no_grad_part, chain, non_leaf_write]


@pytest.mark.parametrize("runner", sorted(RUNNERS))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_gradients(program: Callable[..., Any], runner: str) -> None:
    w, x = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    eager = copy.deepcopy((w, x))
    expected = program(*eager)
    expected.backward()
    finished, kept = trace(program, w, x)
    (result,) = RUNNERS[runner](finished.graph, kept)
    result.backward()
    assert torch.equal(result, expected)
    for mine, theirs in zip((w, x), eager, strict=True):
        assert torch.equal(mine, theirs)
        assert (mine.grad is None) == (theirs.grad is None)
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("runner", ["interpreted", "compiled"])
def test_second_trace_holds_the_backward(runner: str) -> None:
    """A graph run on the fake tensors of a new tracer gives forward and backward in one graph."""
    for program in PROGRAMS:
        w, x = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
        eager = copy.deepcopy((w, x))
        expected = program(*eager)
        wanted = torch.autograd.grad(expected, eager, allow_unused=True)
        finished, _ = trace(program, w, x)
        joint = Tracer(replayable=False)
        with joint:
            fakes = [joint.add_input_of_type(v.type) for v in finished.graph.inputs]
            (loss,) = RUNNERS[runner](finished.graph, fakes)
            leaves = [s for s in fakes if s.requires_grad]
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        kept = [g for g in gradients if g is not None]
        result = joint.finish([loss, *kept])
        verify_graph(result.graph)
        real = [(w, x)[finished.inputs[i]].detach() for i in result.inputs]
        with torch.no_grad():
            got = run_graph(result.graph, real)
        assert torch.equal(got[0], expected)
        for mine, theirs in zip(got[1:], [g for g in wanted if g is not None], strict=True):
            torch.testing.assert_close(mine, theirs)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 5


@pytest.mark.parametrize("function", [Reverse, Double])
def test_custom_functions_are_refused_where_gradients_are_needed(function: Any) -> None:
    with pytest.raises(Untraceable, match="custom autograd function"):
        trace(lambda x: function.apply(x) + 1, torch.ones(3, requires_grad=True))
    with pytest.raises(Untraceable, match="custom autograd function"):
        trace(lambda x: function.apply(x), torch.ones(3, requires_grad=True))
    finished, kept = trace(lambda x: function.apply(x) + 1, torch.ones(3))
    assert run_graph(finished.graph, kept)[0].shape == (3,)


def test_write_back_keeps_autograd_right() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(y)
        return x.sum()

    base, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    eager_base, eager_y = copy.deepcopy((base, y))
    eager_x = eager_base * 1
    program(eager_x, eager_y)
    eager_x.sum().backward()
    x = base * 1
    finished, kept = trace(program, x, y)
    compile_graph_runner(finished.graph)(kept)
    x.sum().backward()
    assert torch.equal(base.grad, eager_base.grad) and torch.equal(y.grad, eager_y.grad)


def test_values_are_freed_after_their_last_use() -> None:
    finished, kept = trace(lambda x: ((x + 1) * 2 - 3).relu(), torch.randn(3))
    runner = compile_graph_runner(finished.graph)
    assert runner.__code__.co_varnames  # a plain function of the inputs
    assert torch.equal(runner(kept)[0], run_graph(finished.graph, kept)[0])


def test_views_with_another_dtype_are_aliases() -> None:
    x = torch.randn(3, 2)
    finished, kept = trace(lambda x: torch.view_as_complex(x), x)
    (result,) = run_graph(finished.graph, kept)
    assert torch.equal(result, torch.view_as_complex(x))
    result.zero_()
    assert x.abs().sum() == 0
