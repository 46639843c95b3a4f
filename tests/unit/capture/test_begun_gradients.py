"""`requires_grad_()` of an input: part of the graph, in inference, saliency maps and penalties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import braze
from braze.trace import Journal
from tests.unit.capture.test_backward import breaks_of


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def saliency(net: nn.Module, x: Tensor) -> Any:
    x.requires_grad_()
    net(x).max(1).values.sum().backward()
    return x.grad


def by_attribute(net: nn.Module, x: Tensor) -> Any:
    x.requires_grad = True
    y = net(x)
    return torch.autograd.grad(y.square().sum(), x)[0], x.requires_grad, x.is_leaf


def penalty(net: nn.Module, x: Tensor) -> Any:
    x.requires_grad_(True)
    (g,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    return (g.norm(2, dim=1) - 1).square().mean()


def penalised_step(net: nn.Module, x: Tensor) -> Any:
    loss = penalty(net, x) + net(x).square().mean()
    loss.backward()
    return loss.detach(), [p.grad for p in net.parameters()]


def left_to_the_caller(net: nn.Module, x: Tensor) -> Any:
    return net(x.requires_grad_()).exp()


def without_a_graph(net: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        x.requires_grad_()
        return net(x)


def nothing_else(net: nn.Module, x: Tensor) -> Any:
    return x.requires_grad_()


def on_and_off(net: nn.Module, x: Tensor) -> Any:
    return net(x.requires_grad_()), x.requires_grad_(False)


def after_use(net: nn.Module, x: Tensor) -> Any:
    y = x * 2
    return net(x.requires_grad_()) + y.sum()


def behind_a_view(net: nn.Module, x: Tensor) -> Any:
    y = x.view(3, 4)
    return net(x.requires_grad_()) + y.sum()


def written_without_gradients(net: nn.Module, x: Tensor) -> Any:
    x.requires_grad_()
    y = x * 2
    with torch.no_grad():
        x.add_(1)
    return y


def refused_write(net: nn.Module, x: Tensor) -> Any:
    y = net(x.requires_grad_())
    try:
        x.add_(1)
    except RuntimeError as error:
        return y * len(str(error))
    return None


WHOLE = [
    saliency,
    by_attribute,
    penalty,
    penalised_step,
    left_to_the_caller,
    without_a_graph,
    nothing_else,
]
BROKEN = [on_and_off, after_use, behind_a_view, written_without_gradients, refused_write]


def seen(program: Callable[..., Any], net: nn.Module, x: Tensor) -> Any:
    """All that a call leaves behind, a backward behind it included."""
    results = program(net, x)
    flat = results if isinstance(results, (tuple, list)) else (results,)
    tensors = [r for r in flat if isinstance(r, Tensor)]
    state = [(r.requires_grad, r.is_leaf) for r in tensors]
    for result in tensors:
        if result.requires_grad and not result.is_leaf:
            result.sum().backward(retain_graph=True)
    grads = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    detached = [r.detach().clone() if isinstance(r, Tensor) else r for r in flat]
    return detached, state, x.requires_grad, x.is_leaf, x.grad, grads


@pytest.mark.parametrize("program", [*WHOLE, *BROKEN], ids=lambda p: p.__name__)
def test_as_eager(program: Callable[..., Any]) -> None:
    compiled = braze.compile(program)
    plain, other = model(), model()
    for call in range(4):
        x = torch.randn(3, 4)
        twin = x.clone()
        if call == 2:  # it needs gradients already
            x.requires_grad_()
            twin.requires_grad_()
        expected, actual = seen(program, plain, x), seen(compiled, other, twin)
        torch.testing.assert_close(actual, expected)
        assert torch.equal(x, twin)
    if program in WHOLE:
        assert breaks_of(compiled) == []


@pytest.mark.parametrize("program", WHOLE, ids=lambda p: p.__name__)
def test_in_one_graph(journal: Journal, program: Callable[..., Any]) -> None:
    compiled = braze.compile(program, fullgraph=True)
    for _ in range(2):
        compiled(model(), torch.randn(3, 4))
    assert not any(record.fallbacks for record in journal.records())


def test_old_hooks_are_asked() -> None:
    """Hooks from a time when it needed gradients."""
    calls: list[int] = []
    net = model()
    compiled = braze.compile(saliency)
    compiled(net, torch.randn(3, 4))
    x = torch.randn(3, 4, requires_grad=True)
    x.register_hook(lambda g: calls.append(1))
    x.requires_grad_(False)
    compiled(net, x)
    plain = torch.randn(3, 4, requires_grad=True)
    plain.register_hook(lambda g: calls.append(2))
    plain.requires_grad_(False)
    saliency(net, plain)
    assert calls == [1, 2]


def test_an_input_whose_view_is_one_too() -> None:
    def f(x: Tensor, y: Tensor) -> Any:
        x.requires_grad_()
        return x * 2 + y

    compiled = braze.compile(f)
    for same in (False, True):
        x = torch.ones(3)
        found = compiled(x, x if same else torch.ones(3))
        found.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full((3,), 3.0 if same else 2.0))


def test_integers_are_refused_as_in_eager() -> None:
    with pytest.raises(RuntimeError, match="floating point"):
        braze.compile(lambda x: x.requires_grad_())(torch.ones(3, dtype=torch.int64))
