"""A node saves what its gradients need: of frozen weights, and inputs without gradients, a linear
layer saves nothing, and a second backward goes through in eager. A graph that both backwards led to
refused it: whether a node saves was told by its kind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import braze


def _outcome(compiles: bool, frozen: bool) -> tuple[str, list[float]]:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    layer.weight.requires_grad_(not frozen)

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = layer(x)
        return y, y[0].sum()

    y, first = (braze.compile(forward) if compiles else forward)(torch.ones(2, 3))
    first.backward()
    assert layer.bias.grad is not None
    try:
        y.sum().backward()
    except RuntimeError as error:
        return str(error).partition("(")[0], layer.bias.grad.tolist()
    return "", layer.bias.grad.tolist()


@pytest.mark.parametrize("frozen", [True, False])
def test_what_is_refused_is_what_eager_refuses(frozen: bool) -> None:
    assert _outcome(True, frozen) == _outcome(False, frozen)
    assert _outcome(False, frozen)[0].startswith("" if frozen else "Trying to backward")


def test_a_gradient_of_nothing_raises_as_eager() -> None:
    """An optional bias that is not there: the compiler failed on it."""
    layer = nn.Linear(3, 3, bias=False)

    def function(x: torch.Tensor) -> object:
        return torch.autograd.grad(layer(x).sum(), [layer.bias], allow_unused=True)

    messages = []
    for call in (function, braze.compile(function, options={"suppress_errors": False})):
        with pytest.raises((RuntimeError, TypeError)) as raised:
            call(torch.ones(2, 3))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
