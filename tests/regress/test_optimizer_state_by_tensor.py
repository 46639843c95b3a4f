"""The state of an optimizer that was made anew, over the same tensors in another order: its entries
were found by the tensors of the call that was compiled, so each got the state of another."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn, optim

import braze


class _Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)


def _steps(wrap: Callable[[Callable[[], None]], Callable[[], None]]) -> list[torch.Tensor]:
    """Parameters and momenta behind each of some steps; the layers change places meanwhile."""
    torch.manual_seed(0)
    layers, gradients = _Layers(), _Layers()
    made = {"optimizer": optim.SGD(layers.parameters(), lr=0.1, momentum=0.5)}

    def step() -> None:
        for parameter, gradient in zip(layers.parameters(), gradients.parameters()):
            parameter.grad = gradient.detach()
        made["optimizer"].step()

    call = wrap(step)
    seen: list[torch.Tensor] = []
    for again in range(2):
        if again:
            layers.first, layers.second = layers.second, layers.first
            made["optimizer"] = optim.SGD(layers.parameters(), lr=0.1, momentum=0.5)
        for _ in range(3):
            call()
            momenta = [entry["momentum_buffer"] for entry in made["optimizer"].state.values()]
            seen += [x.detach().clone() for x in (*layers.parameters(), *momenta)]
    return seen


def test_state_is_found_by_the_tensor_of_this_call() -> None:
    found, right = _steps(braze.compile), _steps(lambda step: step)
    torch.testing.assert_close(found, right)


def test_guards_of_such_a_state_are_logged() -> None:
    """Places of entries were compared, and the tensors in them with that."""
    braze.set_logs("guards")
    try:
        _steps(functools.partial(braze.compile, options={"suppress_errors": False}))
    finally:
        braze.set_logs()
