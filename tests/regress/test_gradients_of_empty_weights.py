"""Strides of gradients of weights without elements, in a step whose backward is captured: eager's
accumulation keeps a gradient only where it has the weight's strides, though nothing lies there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze

Use = Callable[[torch.Tensor], torch.Tensor]
USES: dict[str, Use] = {
    "product": lambda w: w * 2,
    "transposed": lambda w: w.t() * 1,
    "sum": lambda w: w.sum(0),
    "matrices": lambda w: w @ w.t(),
    "joined": lambda w: torch.cat([w, w]),
    "piece": lambda w: w[:, :0],
    "softmax": lambda w: w.softmax(-1),
}


def strides(weight: torch.Tensor, use: Use, compiled: bool) -> tuple[int, ...]:
    w = weight.detach().requires_grad_()

    def step() -> None:
        use(w).sum().backward()

    (braze.compile(step) if compiled else step)()
    assert w.grad is not None
    return w.grad.stride()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 0)], ids=str)
@pytest.mark.parametrize("name", USES)
def test_strides_are_those_of_eager(name: str, shape: tuple[int, int], transposed: bool) -> None:
    weight = torch.empty(shape)
    weight = weight.t() if transposed else weight
    assert strides(weight, USES[name], True) == strides(weight, USES[name], False)


def test_a_layer_without_inputs() -> None:
    def gradient(compiled: bool) -> tuple[int, ...]:
        layer = torch.nn.utils.skip_init(torch.nn.Linear, 0, 3)

        def step(x: torch.Tensor) -> None:
            layer(x).sum().backward()

        (braze.compile(step) if compiled else step)(torch.ones(2, 0))
        assert layer.weight.grad is not None
        return layer.weight.grad.stride()

    assert gradient(True) == gradient(False)
