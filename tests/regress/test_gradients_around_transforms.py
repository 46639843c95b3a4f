"""Gradients of what transforms of torch.func give of a compiled function, the primal result too.

A write lost its gradient where the result and its derivative went into one loss; statistics that a
norm saves counted as differentiable.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.errors import BrazeWarning

Tensor = torch.Tensor
_Function = Callable[[Tensor], Tensor]


def _written(x: Tensor) -> Tensor:
    y = x * 1
    y[0] = x[1].exp()
    return y


def _scattered(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[1:] = x[1:].exp()
    y[0] = x[0] * 2
    return y


FUNCTIONS: dict[str, _Function] = {
    "written": _written,
    "scattered": _scattered,
    "layer norm": lambda x: F.layer_norm(x, (3,)),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "softmax": lambda x: x.softmax(-1),
    "largest": lambda x: x.max(-1)[0],
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None])[0],
    "deviation": lambda x: x.std(-1),
}


def _vjp(c: _Function, x: Tensor) -> Any:
    result, pull, *_ = torch.func.vjp(c, x)
    return pull(torch.ones_like(result))[0].sum() + result.sum()


def _with_value(c: _Function, x: Tensor) -> Any:
    gradient, value = torch.func.grad_and_value(lambda z: c(z).pow(3).sum())(x)
    return gradient.sum() + value


def _with_aux(c: _Function, x: Tensor) -> Any:
    def loss(z: Tensor) -> tuple[Tensor, Tensor]:
        made = c(z)
        return made.pow(3).sum(), made

    gradient, made = torch.func.grad(loss, has_aux=True)(x)
    return gradient.sum() + made.sum()


TRANSFORMS: dict[str, Callable[[_Function, Tensor], Any]] = {
    "vjp": _vjp,
    "grad_and_value": _with_value,
    "has_aux": _with_aux,
    "grad": lambda c, x: torch.func.grad(lambda z: c(z).pow(3).sum())(x),
    "jacrev": lambda c, x: torch.func.jacrev(c)(x),
    "vmap of grad": lambda c, x: torch.func.vmap(torch.func.grad(lambda z: c(z[None]).sum()))(x),
}


@pytest.mark.parametrize(("name", "transform"), itertools.product(FUNCTIONS, TRANSFORMS))
def test_gradients(name: str, transform: str) -> None:
    def outcome(function: _Function) -> Any:
        x = torch.linspace(0, 2, 12, dtype=torch.float64).view(4, 3).sin().requires_grad_()
        made = TRANSFORMS[transform](function, x)
        made.sum().backward()
        return made.detach(), x.grad

    try:
        expected = outcome(FUNCTIONS[name])
    except (IndexError, RuntimeError, ValueError):
        pytest.skip("eager does not")
    with warnings.catch_warnings():
        warnings.simplefilter("error", BrazeWarning)
        found = outcome(braze.compile(FUNCTIONS[name]))
    torch.testing.assert_close(found, expected)
    braze.reset()
