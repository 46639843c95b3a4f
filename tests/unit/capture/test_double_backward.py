"""`create_graph=True` in compiled functions, and through them: right numbers, by float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.func import functional_call

import braze
from tests.unit.capture.test_autograd_functions import living_fakes
from tests.unit.capture.test_backward import breaks_of


def critic() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 1))
    return nn.Sequential(*layers).double()


def data() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(5, 6).double(), torch.randn(5, 6).double(), torch.rand(5, 1).double()


def gradient_penalty(model: nn.Module, x: Tensor, y: Tensor, mix: Tensor) -> Tensor:
    """Of a Wasserstein critic: the norm of its gradient between real and made-up data."""
    between = (mix * x + (1 - mix) * y).requires_grad_(True)
    (g,) = grad(model(between), between, torch.ones(5, 1).double(), create_graph=True)
    return model(x).mean() - model(y).mean() + 10 * ((g.norm(2, dim=1) - 1) ** 2).mean()


def penalty_of_inputs(model: nn.Module, x: Tensor, y: Tensor, mix: Tensor) -> Tensor:
    """Gradients of values that the frame computed."""
    hidden = model[0](x)
    made = model[1:](hidden)
    (g,) = grad(made.sum(), hidden, create_graph=True)
    return made.mean() + g.square().sum() + hidden.exp().mean()


def inner_step(model: nn.Module, x: Tensor, y: Tensor, mix: Tensor) -> Tensor:
    """Of MAML: the loss after a step that is differentiated itself."""
    before = dict(model.named_parameters())
    loss = functional_call(model, before, (x,)).square().mean()
    gradients = grad(loss, list(before.values()), create_graph=True)
    after = {name: p - 0.1 * g for (name, p), g in zip(before.items(), gradients)}
    return functional_call(model, after, (y,)).square().mean()


def third_order(model: nn.Module, x: Tensor, y: Tensor, mix: Tensor) -> Tensor:
    weight = next(model.parameters())
    first = grad(model(x).exp().sum(), weight, create_graph=True)[0]
    second = grad(first.square().sum(), weight, create_graph=True)[0]
    return second.mul(weight).sum()


LOSSES: list[Callable[..., Tensor]] = [
    gradient_penalty,
    penalty_of_inputs,
    inner_step,
    third_order,
]


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


def assert_close(actual: list[Any], expected: list[Any]) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("whole", [False, True], ids=["outer backward", "whole step"])
def test_losses_with_gradients_in_them(loss: Callable[..., Tensor], whole: bool) -> None:
    before = living_fakes()

    def step(model: nn.Module, *args: Tensor) -> Tensor:
        made = loss(model, *args)
        made.backward()
        return made.detach()

    eager, model = critic(), critic()
    compiled = braze.compile(step if whole else loss, fullgraph=True)
    for _ in range(2):
        expected, actual = step(eager, *data()), compiled(model, *data())
        if not whole:
            assert actual.requires_grad
            actual.backward()
            actual = actual.detach()
        assert_close([actual, *gradients(model)], [expected, *gradients(eager)])
    assert breaks_of(compiled) == []
    assert living_fakes() == before


def test_product_of_hessian_and_vector() -> None:
    def product(model: nn.Module, x: Tensor, vectors: list[Tensor]) -> Any:
        wanted = list(model.parameters())
        first = grad(model(x).exp().sum(), wanted, create_graph=True)
        return grad(sum((g * v).sum() for g, v in zip(first, vectors)), wanted)

    model, x = critic(), data()[0]
    vectors = [torch.randn_like(p) for p in model.parameters()]
    compiled = braze.compile(product, fullgraph=True)
    assert_close([*compiled(model, x, vectors)], [*product(model, x, vectors)])
    assert breaks_of(compiled) == []


def test_gradients_with_a_history_leave_the_frame() -> None:
    def slopes(model: nn.Module, x: Tensor) -> Any:
        made = model(x)
        return made, grad(made.sum(), x, create_graph=True)[0]

    eager, model, compiled = critic(), critic(), braze.compile(slopes, fullgraph=True)
    for f, m in ((slopes, eager), (compiled, model)):
        x = data()[0].requires_grad_()
        made, g = f(m, x)
        (made.sum() + g.square().sum()).backward()
    assert_close(gradients(model), gradients(eager))


def test_through_a_compiled_model() -> None:
    """Eager differentiates the gradients of a compiled forward."""

    def penalised(model: Any, x: Tensor) -> Tensor:
        made = model(x)
        (g,) = grad(made.sum(), x, create_graph=True)
        return made.mean() + g.square().sum()

    eager = critic()
    model = copy.deepcopy(eager)
    compiled = braze.compile(model)
    penalised(eager, data()[0].requires_grad_()).backward()
    penalised(compiled, data()[0].requires_grad_()).backward()
    assert_close(gradients(model), gradients(eager))


def test_a_leaf_that_leaves_with_what_was_computed_from_it() -> None:
    def f(x: Tensor) -> Any:
        leaf = (x * 2).requires_grad_()
        return leaf, leaf.sin().sum()

    leaf, made = braze.compile(f)(torch.ones(3))
    made.backward()
    torch.testing.assert_close(leaf.grad, torch.full((3,), 2.0).cos())


def test_gradients_of_a_leaf_made_in_the_frame() -> None:
    """An attack by gradient signs: the leaf's `.grad` is the frame's own business."""

    def attack(model: nn.Module, x: Tensor) -> Tensor:
        change = torch.zeros_like(x).requires_grad_()
        for _ in range(2):
            model(x + change).sum().backward()
            assert change.grad is not None
            change = (change + 0.1 * change.grad.sign()).detach().requires_grad_()
        return change.detach()

    eager, model = critic(), critic()
    compiled = braze.compile(attack, fullgraph=True)
    assert_close([compiled(model, data()[0])], [attack(eager, data()[0])])
    assert_close(gradients(model), gradients(eager))
    assert breaks_of(compiled) == []


def test_a_write_to_a_detached_tensor_begins_a_history() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        made = x.exp().detach()
        made.mul_(w)
        return made.sin()

    for function in (f, braze.compile(f)):
        x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        function(x, w).sum().backward()
        assert x.grad is None
        assert w.grad is not None
        e = torch.ones(3).exp()
        torch.testing.assert_close(w.grad, e.cos() * e)


def test_through_a_compiled_model_with_batch_norm_that_runs_twice() -> None:
    """Running statistics change between the forward and its double backward: nobody reads them."""
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).double()
    model = copy.deepcopy(eager)
    runs: list[Any] = [eager, braze.compile(model)]
    for run in runs:
        x, y, _ = data()
        made = run(x.requires_grad_())
        (g,) = grad(made.sum(), x, create_graph=True)
        (run(y).mean() + g.square().sum()).backward()
    assert_close(gradients(model), gradients(eager))
    assert_close(list(model.buffers()), list(eager.buffers()))
