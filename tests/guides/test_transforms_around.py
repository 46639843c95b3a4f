"""Transforms of `torch.func`, and forward mode, around compiled code: kernels run, not eager."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import nn
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)
from torch.utils._pytree import tree_leaves

import braze
from braze import pipeline
from braze.ir.graphs.graph import Graph
from braze.runtime.autograd import transformed_graph
from braze.runtime.autograd.transformed_graph import TransformedGraph
from tests.recorded import recorded

Compile = Callable[[Any], Any]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


def _values(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def per_sample_gradients(compile: Compile) -> Any:
    model = Small()
    values, compiled = _values(model), compile(model)

    def loss(values: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(compiled, values, (x[None],)), y[None])

    x, y = torch.randn(5, 4), torch.randint(0, 3, (5,))
    return vmap(grad(loss), (None, 0, 0))(values, x, y)


def ensemble(compile: Compile) -> Any:
    values, buffers = stack_module_state([Small() for _ in range(3)])
    base, x = compile(Small()), torch.randn(7, 4)
    made = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(values, buffers)
    made.square().sum().backward()
    return made, [value.grad for value in values.values()]


def jacobians(compile: Compile) -> Any:
    compiled, x = compile(Small()), torch.randn(5, 4)
    return vmap(jacrev(compiled))(x), vmap(jacfwd(compiled))(x), jacrev(compiled)(x)


def product_with_hessian(compile: Compile) -> Any:
    f, x, v = compile(lambda x: (x.sin() * x).prod()), torch.randn(6), torch.randn(6)
    return jvp(grad(f), (x,), (v,)), vjp(grad(f), x)[1](v), hessian(f)(x)


def physics(compile: Compile) -> Any:
    """A loss of second derivatives, and its gradients at the level of plain autograd."""
    model, x = Small(), torch.randn(5, 4)
    compiled = compile(model)
    slopes = vmap(grad(lambda x: compiled(x).sum()))(x)
    slopes.square().sum().backward()
    second = vmap(hessian(lambda x: compiled(x).sum()))(x)
    return slopes, second, [parameter.grad for parameter in model.parameters()]


def adaptation(compile: Compile) -> Any:
    """Gradients through an inner step of gradients, of a batch of tasks."""
    model = Small()
    values, compiled = _values(model), compile(model)
    x, y = torch.randn(6, 5, 4), torch.randn(6, 5, 3)

    def loss(values: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(functional_call(compiled, values, (x,)), y)

    def adapted(values: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        slopes = grad(loss)(values, x, y)
        return loss({name: values[name] - 0.1 * slopes[name] for name in values}, x, y)

    return grad(lambda values: vmap(adapted, (None, 0, 0))(values, x, y).mean())(values)


def stopped(compile: Compile) -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x.exp()
        return (x.detach() * x * y).sum()

    x, compiled = torch.tensor([1.0, 2.0]), compile(f)
    return grad(compiled)(x), hessian(compiled)(x), jacrev(jacrev(compiled))(x)


def views(compile: Compile) -> Any:
    f, x = compile(lambda x: (x.T, x.reshape(-1), x[0], x + 1)), torch.randn(2, 3, 4)
    made, pull = vjp(f, x[0])
    return vmap(f)(x), vmap(f, in_dims=2)(x), pull(made)


def captured(compile: Compile) -> Any:
    """A tensor of an outer level that the function closes over."""

    def outer(w: torch.Tensor) -> torch.Tensor:
        return grad(compile(lambda x: (x * w).sum()))(torch.arange(3.0)).sum() * w.sum()

    return grad(outer)(torch.arange(3.0) + 1)


def structures(compile: Compile) -> Any:
    def f(given: dict[str, torch.Tensor], scale: float = 2.0) -> Any:
        y = given["x"] * scale
        return y.sum(), {"y": y, "largest": given["n"].argmax(), "n": given["n"] + 1}

    given = {"x": torch.randn(4, 3), "n": torch.arange(8).view(4, 2)}
    compiled = compile(f)
    one = {"x": torch.randn(3), "n": torch.arange(2)}
    pair = lambda x: compiled({"x": x, "n": one["n"]}, scale=4.0)  # noqa: E731
    return vmap(lambda d: compiled(d, scale=3.0))(given), grad(pair, has_aux=True)(one["x"])


def changing_shapes(compile: Compile) -> Any:
    f = compile(lambda x: (x.sin() * x).sum(-1))
    shapes = [(4, 3), (5, 3), (4, 7), (4, 3)]
    dtypes = (torch.float32, torch.float64)
    return [vmap(f)(torch.ones(shape, dtype=dtype)) for shape in shapes for dtype in dtypes]


def forward_mode(compile: Compile) -> Any:
    f, x = compile(lambda x: x.sin() * x + 1), torch.randn(3)
    with forward_ad.dual_level():
        made = f(forward_ad.make_dual(x, torch.ones_like(x)))
        return tuple(forward_ad.unpack_dual(made)), f(x)


def broken(compile: Compile) -> Any:
    """A graph break in the middle."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print(end="")
        return (y * x).sum()

    compiled = compile(f)
    return grad(compiled)(torch.ones(4)), vmap(compiled)(torch.ones(3, 4))


QUICK = (forward_mode, captured)
PROGRAMS = [
    per_sample_gradients, ensemble, jacobians, product_with_hessian, physics, adaptation, stopped,
    views, captured, structures, changing_shapes, forward_mode, broken,
]  # fmt: skip


def _compare(program: Callable[[Compile], Any], compile: Compile) -> int:
    """How many kernels ran in the place of the program's operators; none of them ran eagerly."""
    torch.manual_seed(0)
    wanted = tree_leaves(program(lambda target: target))
    torch.manual_seed(0)
    with recorded() as journal:
        found = tree_leaves(program(compile))
    assert len(found) == len(wanted)
    for made, expected in zip(found, wanted):
        torch.testing.assert_close(made, expected)
        if isinstance(made, torch.Tensor):
            assert made.requires_grad == expected.requires_grad
    assert journal.records() and not journal.left_to_eager() and not journal.fallbacks()
    return sum(record.counters.get("kernels", 0) for record in journal.records())


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, marks=pytest.mark.nightly if program is adaptation else ())
        for program in PROGRAMS
    ],
    ids=lambda program: program.__name__,
)
def test_graphs_around_compiled_code(program: Callable[[Compile], Any]) -> None:
    """The graphs, by operators: those that transforms made of what was captured."""
    _compare(program, functools.partial(braze.compile, backend="aot_eager"))


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, marks=() if program in QUICK else pytest.mark.nightly)
        for program in PROGRAMS
    ],
    ids=lambda program: program.__name__,
)
def test_kernels_around_compiled_code(program: Callable[[Compile], Any]) -> None:
    assert _compare(program, braze.compile) or program is views


def test_one_compile_serves_later_calls() -> None:
    with recorded() as journal:
        compiled = braze.compile(lambda x: (x.sin() * x).sum())
        transformed = vmap(grad(compiled))
        transformed(torch.randn(4, 3))
        before = len(journal.records())
        for _ in range(3):
            transformed(torch.randn(4, 3))
        assert len(journal.records()) == before


def test_gradients_keep_what_the_forward_computed() -> None:
    """The backward has no product of the forward in it."""
    with recorded() as journal:
        compiled = braze.compile(lambda x, w: (x @ w).exp().sum())
        grad(compiled, argnums=1)(torch.randn(4, 5), torch.randn(5, 6))
    products = [
        sum("mm" in op for op in record.extern_ops) + record.counters.get("products", 0)
        for record in journal.records()
    ]
    assert sum(products) == 2, products  # one forward, one for the gradient of w


class _Doubled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 7

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        return tangent * 5


def _add_one(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


LEFT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "draws": (lambda x: x + torch.rand(3), lambda f: vmap(f, randomness="different")),
    "a custom function": (lambda x: _Doubled.apply(x).sum(), lambda f: vmap(grad(f))),
    "a custom tangent": (
        lambda x: _Doubled.apply(x),
        lambda f: lambda x: jvp(f, (x,), (torch.ones_like(x),))[1],
    ),
    "a write": (_add_one, lambda f: lambda x: vmap(f)(x.clone())),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_eager_and_said(name: str) -> None:
    f, transform = LEFT[name]
    x = torch.randn(4, 3)
    torch.manual_seed(0)
    wanted = transform(f)(x)
    torch.manual_seed(0)
    with recorded() as journal, pytest.warns(braze.exc.BrazeWarning, match="is called under"):
        found = transform(braze.compile(f))(x)
    torch.testing.assert_close(found, wanted)
    (said,) = journal.left_to_eager()
    assert said.code == "transform"
    with pytest.raises(braze.exc.GraphBreakError, match="is called under"):
        transform(braze.compile(f, fullgraph=True))(x)


def test_batches_of_weights_are_not_copied() -> None:
    """The gradients of weights, one a row, are what the product of matrices gives."""
    made: list[Graph] = []

    def watched(graph: Graph, rules: Any) -> Any:
        compile = rules.compile
        rules.compile = lambda graph: (made.append(graph), compile(graph))[1]
        return TransformedGraph(graph, rules)

    with mock.patch.object(pipeline, "TransformedGraph", watched):
        compiled = braze.compile(lambda w, x: (x[None] @ w.T).tanh().sum(), backend="aot_eager")
        found = vmap(grad(compiled), (None, 0))(torch.ones(6, 8), torch.ones(5, 8))
    assert found.shape == (5, 6, 8)
    ops = [node.op for graph in made for node in graph.nodes]
    assert torch.ops.aten.bmm.default in ops and torch.ops.aten.clone.default not in ops


def test_ever_other_numbers_of_rows_are_not_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformed_graph, "_MOST_MADE", 2)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    with recorded() as journal:
        compiled = braze.compile(function)
        for rows in range(2, 7):
            x = torch.rand(rows, 3)
            torch.testing.assert_close(vmap(compiled)(x), vmap(function)(x))
    (reason,) = journal.fallbacks()
    assert "2 were compiled, of other inputs or numbers of rows" in reason
    assert len(journal.records()) == 3  # the frame, and two batches
