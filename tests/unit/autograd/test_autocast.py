"""Autocast that is active where `backward()` is called."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

import braze


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh()


def gradient(function: object, x: Tensor, start: Tensor, cast: bool) -> Tensor:
    w = start.clone().requires_grad_()
    out = function(x, w)  # type: ignore[operator]
    with torch.autocast("cpu", torch.bfloat16) if cast else contextlib.nullcontext():
        out.sum().backward()
    assert w.grad is not None
    return w.grad


def test_the_backward_is_cast_as_in_eager() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(16, 16), torch.randn(16, 16)
    compiled = braze.compile(product)
    for cast in (False, True, False):
        torch.testing.assert_close(
            gradient(compiled, x, w, cast), gradient(product, x, w, cast), rtol=1e-5, atol=1e-5
        )
    exact = gradient(product, x, w, cast=False)
    assert (gradient(compiled, x, w, cast=True) - exact).abs().max() > 1e-3
