"""Batches of gradients through one compiled forward: `is_grads_batched`, `vmap`, Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import braze


def layer(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh()


def points(x: Tensor, w: Tensor) -> Tensor:
    return x.sin() * x + w.sum()


def rows(x: Tensor, w: Tensor) -> Tensor:
    return F.softmax(x @ w, -1).log().sum(1)


def moved(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).exp().t()


def pieces(x: Tensor, w: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return torch.cat([a * b, F.layer_norm(b, (2,))], 1)[:, 1:] * w[0, 0]


def image(x: Tensor, w: Tensor) -> Tensor:
    return F.max_pool2d(F.conv2d(x[None, None], w[None, None, :2, :2]), 2)


def gathered(x: Tensor, w: Tensor) -> Tensor:
    return F.embedding(torch.tensor([0, 2, 0]), x) @ w


PROGRAMS = [layer, points, rows, moved, pieces, image, gathered]


def leaves() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, 4, dtype=torch.float64).unbind()
    x, w = x.clone(), w.clone()
    return x.requires_grad_(), w.requires_grad_()


def by_grad(y: Tensor, given: tuple[Tensor, ...], batch: Tensor) -> Any:
    return torch.autograd.grad(
        y, given, batch, is_grads_batched=True, allow_unused=True, retain_graph=True
    )


def by_vmap(y: Tensor, given: tuple[Tensor, ...], batch: Tensor) -> Any:
    def one(tangent: Tensor) -> Any:
        return torch.autograd.grad(y, given, tangent, retain_graph=True, materialize_grads=True)

    return torch.vmap(one)(batch)


@pytest.mark.parametrize("take", [by_grad, by_vmap])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_eager(program: Callable[..., Tensor], take: Callable[..., Any]) -> None:
    given = leaves()
    expected = program(*given)
    actual = braze.compile(program)(*given)
    batch = torch.randn(3, *expected.shape, dtype=torch.float64)
    for tangents in (batch, batch.transpose(1, -1).contiguous().transpose(1, -1)):
        found, wanted = take(actual, given, tangents), take(expected, given, tangents)
        torch.testing.assert_close(found, wanted)
    single = torch.autograd.grad(actual, given, batch[0], allow_unused=True)
    torch.testing.assert_close(
        single, torch.autograd.grad(expected, given, batch[0], allow_unused=True)
    )


def test_a_jacobian_at_once() -> None:
    x, w = leaves()
    compiled = braze.compile(layer)
    for vectorize in (False, True):
        found = torch.autograd.functional.jacobian(compiled, (x, w), vectorize=vectorize)
        torch.testing.assert_close(found, torch.autograd.functional.jacobian(layer, (x, w)))


def test_a_batch_that_is_differentiated_again() -> None:
    x, w = leaves()
    batch = torch.randn(3, 4, 4, dtype=torch.float64)
    found = []
    for function in (layer, braze.compile(layer)):
        (g,) = torch.autograd.grad(
            function(x, w), x, batch, is_grads_batched=True, create_graph=True
        )
        found.append(torch.autograd.grad(g.square().sum(), (x, w)))
    torch.testing.assert_close(found[1], found[0])


def test_in_a_frame_that_goes_on() -> None:
    net = nn.Linear(4, 4).double()

    def f(x: Tensor, batch: Tensor) -> Tensor:
        y = net(x).sin()
        (g,) = torch.autograd.grad(y, x, batch, is_grads_batched=True)
        return g.sum(0) * 2

    x = leaves()[0]
    batch = torch.randn(3, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(braze.compile(f)(x, batch), f(x, batch))
