"""Gradients asked for in a compiled function, where a history from before it leads on.

What autograd found behind an argument with a history was left out: gradients were None, zeros, or
those of the direct way alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

Tensor = torch.Tensor
_Loss = Callable[[Tensor, Tensor], Tensor]


def _hidden(a: Tensor, y: Tensor) -> Tensor:
    return (y * 2).sum()


def _both(a: Tensor, y: Tensor) -> Tensor:
    return (y * a).sum()


def _direct(a: Tensor, y: Tensor) -> Tensor:
    return (a * a).sum() + y.detach().sum()


def _behind_a_break(a: Tensor, y: Tensor) -> Tensor:
    z = a * a
    braze.graph_break()
    return (z * a).sum()


def _checkpointed(a: Tensor, y: Tensor) -> Tensor:
    def printed(z: Tensor) -> Tensor:
        print(end="")
        return z.sin() * z

    made: Tensor = torch.utils.checkpoint.checkpoint(printed, a * 2, use_reentrant=False)
    return made.sum()


LOSSES: dict[str, _Loss] = {
    "through an argument": _hidden,
    "through an argument and directly": _both,
    "directly": _direct,
    "behind a break": _behind_a_break,
    "through a checkpoint with effects": _checkpointed,
}


def _grad(loss: Tensor, asked: list[Tensor]) -> Any:
    return torch.autograd.grad(loss, asked)


def _unused(loss: Tensor, asked: list[Tensor]) -> Any:
    return torch.autograd.grad(loss, asked, allow_unused=True)


def _materialized(loss: Tensor, asked: list[Tensor]) -> Any:
    return torch.autograd.grad(loss, asked, materialize_grads=True)


def _created(loss: Tensor, asked: list[Tensor]) -> Any:
    return [
        None if g is None else g.detach()
        for g in torch.autograd.grad(loss, asked, create_graph=True, allow_unused=True)
    ]


def _backward_inputs(loss: Tensor, asked: list[Tensor]) -> Any:
    loss.backward(inputs=asked)
    return [tensor.grad for tensor in asked]


def _backward(loss: Tensor, asked: list[Tensor]) -> Any:
    loss.backward()
    return [tensor.grad for tensor in asked if tensor.is_leaf]


WAYS: dict[str, Callable[[Tensor, list[Tensor]], Any]] = {
    "grad": _grad,
    "allow_unused": _unused,
    "materialize_grads": _materialized,
    "create_graph": _created,
    "backward(inputs=)": _backward_inputs,
    "backward()": _backward,
}
ASKED = ("a", "y", "ay")


def _outcome(function: Callable[[Tensor, Tensor], Any]) -> Any:
    a = torch.tensor([1.0, 2.0], requires_grad=True)
    try:
        return function(a, a * 3)
    except RuntimeError as error:
        return type(error).__name__


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(("loss", "way"), itertools.product(LOSSES, WAYS))
def test_all_ways_lead_there(loss: str, way: str) -> None:
    for asked in ASKED:

        def function(a: Tensor, y: Tensor, asked: str = asked) -> Any:
            return WAYS[way](LOSSES[loss](a, y), [{"a": a, "y": y}[name] for name in asked])

        found, expected = _outcome(braze.compile(function)), _outcome(function)
        assert type(found) is type(expected)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
        braze.reset()


def test_an_argument_with_a_history_is_asked_for_in_one_graph() -> None:
    def penalty(y: Tensor) -> Tensor:
        return torch.autograd.grad(y.pow(2).sum(), y)[0]

    compiled = braze.compile(penalty, fullgraph=True)
    y = torch.ones(2, requires_grad=True) * 3
    assert compiled(y).tolist() == [6.0, 6.0]


@pytest.mark.parametrize("is_first", [False, True])
def test_hooks_of_an_argument_with_a_history_are_called(is_first: bool) -> None:
    def doubled(y: Tensor) -> Tensor:
        return torch.autograd.grad(y.pow(2).sum(), y)[0]

    compiled = braze.compile(doubled)
    if not is_first:
        compiled(torch.ones(2, requires_grad=True) * 1)
    y = torch.ones(2, requires_grad=True) * 1
    y.register_hook(lambda g: g * 2)
    assert compiled(y).tolist() == [4.0, 4.0]


def test_an_error_in_a_backward_is_raised_where_gradients_may_be_unused() -> None:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            raise KeyError("three")

    def function(x: Tensor) -> Any:
        made: Tensor = Bad.apply(x)  # type: ignore[no-untyped-call]
        return torch.autograd.grad(made.sum(), x, allow_unused=True)[0]

    with pytest.raises(KeyError, match="three"):
        braze.compile(function)(torch.ones(3, requires_grad=True))
