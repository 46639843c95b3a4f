"""Printing and parsing graphs; the verifier's refusals."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from braze.ir.graphs.graph import Graph, Mutation, Node, Output, Value
from braze.ir.graphs.print_graph import GraphSyntaxError, parse_graph, print_graph
from braze.ir.graphs.run_graph import run_graph
from braze.ir.graphs.verify_graph import InvalidGraph, verify_graph
from braze.ir.origin import Origin
from braze.ir.types import TensorType
from braze.shapes.expr import Symbol, as_expr, floor_div, simplified
from braze.tracing import Tracer


def sample_graph() -> tuple[Graph, list[torch.Tensor]]:
    """A graph with views, writes, constants, several results, no_grad, odd arguments."""
    x, y = torch.randn(4, 6), torch.randn(4, 6, requires_grad=True)
    tracer = Tracer()
    with tracer:
        a, b = tracer.add_input(x), tracer.add_input(y)
        tracer.origin = Origin("/a dir/model.py", 7, "<lambda>", "torch.f(x)")
        with torch.no_grad():
            top = b.topk(2)
        a[0].mul_(torch.tensor([1.0, float("inf"), 3, 4, 5, 6]))
        c = torch.cat([a, b]).to(torch.float64).clamp(max=2.5)
        tracer.origin = Origin("other.py", 9)
        d = torch.div(c, 3, rounding_mode="floor").contiguous().sum(dim=(0, 1))
        e = torch.zeros(3, device="cpu") + 1e-30
        results = [top[0], top[1], d, a.t(), e, c[0], c[1]]
    finished = tracer.finish(results)
    reals = [x, y]
    return finished.graph, [reals[i] for i in finished.inputs]


def test_round_trip() -> None:
    graph, inputs = sample_graph()
    verify_graph(graph)
    text = print_graph(graph)
    parsed = parse_graph(text)
    assert print_graph(parsed) == text
    verify_graph(parsed)
    copies = [t.detach().clone() for t in inputs]
    again = [t.detach().clone() for t in inputs]
    for want, have in zip(run_graph(graph, copies), run_graph(parsed, again), strict=True):
        torch.testing.assert_close(have, want, equal_nan=True)
        assert want.stride() == have.stride()
    assert "no_grad" in text and "/a dir/model.py:7 in <lambda> -> torch.f(x)" in text
    assert "#" not in print_graph(graph, origins=False)


def test_symbolic_sizes_round_trip() -> None:
    n, m = Symbol("n", 2, None), Symbol("m", 0, 9)
    half = floor_div(as_expr(n) * m + 1, 2)
    cpu = torch.device("cpu")
    value = Value(0, TensorType(torch.float32, (as_expr(n), half), (half, 1), cpu))
    result = Value(1, TensorType(torch.float32, (simplified(as_expr(n) * half),), (1,), cpu))
    node = Node(torch.ops.aten.view.default, (value, (result.type.shape[0],)), (), (result,))
    graph = Graph((value,), (), (node,), (Output(result),), ())
    text = print_graph(graph)
    assert print_graph(parse_graph(text)) == text


def test_large_constants_need_their_tensor() -> None:
    tracer = Tracer()
    big = torch.arange(20.0)
    with tracer:
        result = tracer.add_constant(big) + 1
    graph = tracer.finish([result]).graph
    text = print_graph(graph)
    with pytest.raises(GraphSyntaxError, match="needed"):
        parse_graph(text)
    index = graph.constants[0].value.index
    assert print_graph(parse_graph(text, {index: big})) == text


@pytest.mark.parametrize("line", ["nonsense", "%1 = aten.add.Tensor(%9, 1)", "output %77"])
def test_bad_lines_are_named(line: str) -> None:
    with pytest.raises(GraphSyntaxError):
        parse_graph(f"graph {{\n  input %0: f32[2][1]cpu\n  {line}\n}}\n")


def broken(graph: Graph, **changes: object) -> Graph:
    """The graph with some fields replaced."""
    return dataclasses.replace(graph, **changes)


def test_verifier_refuses() -> None:
    graph, _ = sample_graph()
    first = graph.nodes[0]
    with pytest.raises(InvalidGraph, match="before it is defined"):
        verify_graph(broken(graph, nodes=graph.nodes[::-1]))
    with pytest.raises(InvalidGraph, match="defined twice"):
        verify_graph(broken(graph, nodes=(first, *graph.nodes)))
    with pytest.raises(InvalidGraph, match="missing") as caught:
        verify_graph(broken(graph, nodes=(dataclasses.replace(first, args=()), *graph.nodes[1:])))
    assert caught.value.origin == first.origin
    with pytest.raises(InvalidGraph, match="results"):
        short = dataclasses.replace(first, outputs=first.outputs[:1])
        verify_graph(broken(graph, nodes=(short, *graph.nodes[1:]), outputs=()))
    with pytest.raises(InvalidGraph, match="no input"):
        value = graph.nodes[-1].outputs[0]
        assert value is not None
        verify_graph(broken(graph, mutations=(Mutation(value, value),)))
    with pytest.raises(InvalidGraph, match="written back"):
        verify_graph(broken(graph, mutations=(Mutation(graph.inputs[0], value),)))
