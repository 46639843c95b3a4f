"""`ctx.name = ...` in a custom function broke the graph, since autograd's nodes have a method of
that name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import braze


class Named(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.name = name
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return g * (3 if ctx.name == "first" else 5), None


class Split(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, name: str) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.name = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return g * (3 if ctx.name == "first" else 5), None


def outside(function: Any, x: Tensor) -> Tensor:
    return (function.apply(x, "first") + function.apply(x, "second") * x).sum()


def inside(function: Any, x: Tensor) -> Tensor:
    y = outside(function, x)
    y.backward()
    return x.sum()


def twice(function: Any, x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(outside(function, x), x, create_graph=True)
    return (slope * x).sum()


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("function", [Named, Split])
@pytest.mark.parametrize("program", [outside, inside, twice])
def test_names_are_kept(program: Any, function: Any, backend: str) -> None:
    found = []
    for call in (program, braze.compile(program, backend=backend)):
        x = torch.linspace(0, 1, 3).requires_grad_()
        call(function, x).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])
    status = braze.status()[-1]
    assert not status.breaks and not status.left_to_eager
