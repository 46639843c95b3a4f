"""Joint graphs of captured functions: run against eager, and split at every memory budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from braze.autograd import (
    NotDifferentiable,
    backward_graph,
    forward_again,
    partition,
    trace_joint,
    with_zeros,
)
from braze.autograd.prices import Price, price_of
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.joint_graph import ForwardBackward, SavedInput, print_joint, print_pair
from braze.ir.graphs.random_ops import is_random
from braze.ir.graphs.run_graph import run_graph
from braze.ir.graphs.verify_joint_graph import verify_pair
from braze.ir.origin import Origin
from braze.tracing import Tracer


def capture(function: Callable[..., Any], *tensors: torch.Tensor) -> Graph:
    """The graph of a function of tensors; inputs stay as they are given."""
    tracer = Tracer()
    with tracer:
        made = function(*[tracer.add_input(tensor) for tensor in tensors])
    trace = tracer.finish(made if isinstance(made, tuple) else (made,))
    assert trace.inputs == tuple(range(len(tensors)))
    return trace.graph


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def run_pair(pair: ForwardBackward, tensors: list[torch.Tensor], tangents: list[Any]) -> list[Any]:
    """Results, then one gradient (or None) an input."""
    with torch.no_grad():
        made = run_graph(pair.forward, tensors)
        saved = [
            tensors[s.index] if isinstance(s, SavedInput) else made[s.index] for s in pair.saved
        ]
        given = [tangents[number] for number in pair.backward.tangents]
        found = run_graph(pair.backward.graph, [*saved, *given])
    gradients = [None if n is None else found[n] for n in pair.backward.gradients]
    return [*made[: len(pair.is_differentiable)], *gradients]


def mlp(x: Any, w: Any, b: Any, v: Any) -> Any:
    hidden = F.gelu(F.layer_norm(F.linear(x, w, b), (6,)))
    return F.log_softmax(F.linear(hidden * torch.sigmoid(hidden) + 1, v), -1)


def attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 12)


def reused(x: Any, y: Any) -> Any:
    z = x * y
    a, b = z.chunk(2, -1)
    z = torch.cat([a.exp(), b.relu()], -1) / (1 + z * z)
    return z.sum(0), (z @ y.t()).tanh()


def written(x: Any, y: Any) -> Any:
    z = x * 2
    z[0] = y[1].sin()
    z.mul_(y)
    return z


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "mlp": (mlp, ((4, 5), (6, 5), (6,), (3, 6))),
    "attention": (attention, ((2, 3, 5, 4),) * 3),
    "reused": (reused, ((4, 6), (4, 6))),
    "written": (written, ((3, 4), (3, 4))),
}


@pytest.mark.parametrize("budget", [1.0, 0.6, 0.3, 0.0])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_eager(name: str, budget: float) -> None:
    function, shapes = PROGRAMS[name]
    tensors = [leaf(*shape) for shape in shapes]
    joint = trace_joint(capture(function, *tensors))
    pair = partition(joint, budget)
    verify_pair(joint, pair)
    assert print_joint(joint) and print_pair(pair)
    expected = function(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    tangents = [torch.randn_like(result) for result in expected]
    gradients = torch.autograd.grad(expected, tensors, tangents)
    for a, b in zip(run_pair(pair, tensors, tangents), (*expected, *gradients), strict=True):
        torch.testing.assert_close(a, b.detach())


def bytes_saved(pair: ForwardBackward) -> int:
    saved = [pair.forward.outputs[s.index] for s in pair.saved if not isinstance(s, SavedInput)]
    shapes = [output.value.type.shape for output in saved]  # type: ignore[union-attr]
    return sum(torch.Size(shape).numel() for shape in shapes)  # type: ignore[arg-type]


def test_less_budget_saves_less() -> None:
    function, shapes = PROGRAMS["mlp"]
    joint = trace_joint(capture(function, *[leaf(*shape) for shape in shapes]))
    sizes = [bytes_saved(partition(joint, budget)) for budget in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_products_and_random_numbers_are_never_repeated(budget: float) -> None:
    def function(x: Any, w: Any) -> Any:
        return F.dropout(torch.relu(x @ w), 0.5).exp() @ w.t()

    graph = capture(function, leaf(4, 5), leaf(5, 3))
    pair = partition(trace_joint(graph), budget)
    backward = pair.backward.graph.nodes
    assert not any(is_random(node.op) for node in backward)
    products = [n for n in backward if price_of(n.op) is Price.NEVER and "mm" in str(n.op)]
    assert len(products) == 4


def test_nothing_more_of_the_visible_is_saved_than_by_eager() -> None:
    """sigmoid saves its result and not x: x may be written to before the backward."""
    x = leaf(3)
    pair = partition(trace_joint(capture(lambda x: torch.sigmoid(x) * 2, x)), 0.0)
    assert not any(isinstance(saved, SavedInput) for saved in pair.saved)
    assert pair.saved


def test_which_tangents_are_given_selects_the_backward() -> None:
    def function(x: Any, y: Any) -> Any:
        return x.exp(), y.sin()

    x, y = leaf(3), leaf(3)
    graph = capture(function, x, y)
    pair = partition(trace_joint(graph))
    variant = backward_graph(trace_joint(graph, (False, True)), pair.saved_values)
    assert variant.gradients == (None, 0) and variant.tangents == (1,)


def test_batch_norm_does_not_save_what_it_writes_to() -> None:
    mean, variance = torch.zeros(5), torch.ones(5)
    x = torch.randn(4, 5, requires_grad=True)
    graph = capture(lambda x, m, v: F.batch_norm(x, m, v, training=True), x, mean, variance)
    pair = partition(trace_joint(graph))
    assert [s.index for s in pair.saved if isinstance(s, SavedInput)] == [0]
    assert forward_again(graph, pair) is not None


def test_a_written_input_is_saved_as_it_was() -> None:
    def function(x: Any, y: Any) -> Any:
        z = x * y
        x.add_(1)
        return z

    x, y = torch.randn(3), leaf(3).float().detach().requires_grad_()
    graph = capture(function, x, y)
    pair = partition(trace_joint(graph))
    assert not any(isinstance(saved, SavedInput) for saved in pair.saved)
    before = x.clone()
    (_, _, gradient) = run_pair(pair, [x, y], [torch.ones(3)])
    torch.testing.assert_close(gradient, before)
    torch.testing.assert_close(x, before + 1)
    assert forward_again(graph, pair) is None


def test_operators_without_a_formula_are_refused() -> None:
    graph = capture(torch.igamma, leaf(3), leaf(3))
    with pytest.raises(NotDifferentiable, match="igamma"):
        trace_joint(graph)


def test_zeros_for_gradients_that_are_not_given() -> None:
    def function(x: Any, y: Any) -> Any:
        return x.exp() * x, y.sin() * 2

    x, y = leaf(3), leaf(3)
    graph = capture(function, x, y)
    pair = partition(trace_joint(graph))
    exact = backward_graph(trace_joint(graph, (True, False)), pair.saved_values)
    padded = with_zeros(pair.backward, (True, False))
    assert [g is None for g in padded.gradients] == [g is None for g in exact.gradients]
    tangents = [torch.ones(3, dtype=torch.float64), None]
    for a, b in zip(
        run_pair(replace(pair, backward=padded), [x, y], tangents),
        run_pair(replace(pair, backward=exact), [x, y], tangents),
        strict=True,
    ):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


def test_backward_operators_have_the_origin_of_their_forward() -> None:
    tracer = Tracer()
    x = leaf(3)
    with tracer:
        fake = tracer.add_input(x)
        tracer.origin = Origin("model.py", 1)
        y = fake.exp()
        tracer.origin = Origin("model.py", 2)
        z = y.sin()
    joint = trace_joint(tracer.finish([z]).graph)
    lines = [(str(node.op), node.origin.line) for node in joint.backward]
    assert lines == [
        ("aten.cos.default", 2),
        ("aten.mul.Tensor", 2),
        ("aten.mul.Tensor", 1),
    ]
