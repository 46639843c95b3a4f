"""`torch.func` and forward-mode gradients, inside compiled code and around it (003-32)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import braze
from tests.guides.graphs import in_one_graph


def toy(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


def each(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x + 1


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Callable[[torch.Tensor], Any]]] = {
    "grad": lambda f: grad(f),
    "grad_and_value": lambda f: torch.func.grad_and_value(f),
    "vmap": lambda f: vmap(f),
    "jvp": lambda f: lambda x: jvp(f, (x,), (torch.ones_like(x),)),
    "vjp": lambda f: lambda x: vjp(f, x)[1](torch.ones_like(f(x))),
    "jacrev": lambda f: jacrev(f),
    "jacfwd": lambda f: jacfwd(f),
    "hessian": lambda f: hessian(f),
    "vmap_of_grad": lambda f: vmap(grad(f)),
}
SCALAR = {"grad", "grad_and_value", "hessian", "vmap_of_grad"}


def _input(name: str) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 3) if "vmap" in name else torch.randn(5)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_inside(name: str) -> None:
    f = toy if name in SCALAR else each
    x = _input(name)
    transformed = TRANSFORMS[name](f)
    torch.testing.assert_close(in_one_graph(lambda x: transformed(x), x), transformed(x))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_around(name: str) -> None:
    f = toy if name in SCALAR else each
    x = _input(name)
    expected = TRANSFORMS[name](f)(x)
    compiled = braze.compile(f, fullgraph=True, backend="aot_eager")  # who leaves calls raises
    torch.testing.assert_close(TRANSFORMS[name](compiled)(x), expected)


def test_functional_call() -> None:
    model = nn.Linear(3, 3)
    values = {name: torch.randn_like(p) for name, p in model.named_parameters()}

    def f(values: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(model, values, (x,))

    x = torch.randn(2, 3)
    torch.testing.assert_close(in_one_graph(f, values, x), f(values, x))


def test_functional_call_of_a_compiled_module() -> None:
    model = nn.Linear(3, 3)
    compiled = braze.compile(model)
    values = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    x = torch.randn(2, 3)
    expected = functional_call(model, values, (x,))
    torch.testing.assert_close(
        functional_call(compiled, {f"_orig_mod.{k}": v for k, v in values.items()}, (x,)), expected
    )


def test_gradients_per_sample() -> None:
    model = nn.Linear(3, 2)

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (functional_call(model, values, (x,)) - y).square().mean()

    values = {name: p.detach() for name, p in model.named_parameters()}
    x, y = torch.randn(5, 3), torch.randn(5, 2)
    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))
    torch.testing.assert_close(in_one_graph(per_sample, values, x, y), per_sample(values, x, y))


def test_forward_mode_inside() -> None:
    def f(x: torch.Tensor, t: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, t)
            return forward_ad.unpack_dual(dual.sin() * dual).tangent

    x, t = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(braze.compile(f)(x, t), f(x, t))


def test_forward_mode_around() -> None:
    compiled = braze.compile(each)
    x, t = torch.randn(3), torch.randn(3)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(compiled(forward_ad.make_dual(x, t))).tangent
        expected = forward_ad.unpack_dual(each(forward_ad.make_dual(x, t))).tangent
    torch.testing.assert_close(found, expected)
