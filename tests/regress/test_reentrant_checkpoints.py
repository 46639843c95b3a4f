"""A reentrant checkpoint refuses `torch.autograd.grad` and `backward(inputs=)`: in a graph, where
only its function is called, the gradients were given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import braze
from braze.errors import GraphBreakError

WEIGHT = torch.nn.Parameter(torch.full((3,), 2.0, dtype=torch.float64))


def layer(x: torch.Tensor) -> torch.Tensor:
    return (x * WEIGHT).sin()


def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), x.cos()


def gradient(x: torch.Tensor) -> torch.Tensor:
    y = checkpoint(layer, x * 2, use_reentrant=True)
    return torch.autograd.grad(y.sum(), x)[0]


def of_a_pair(x: torch.Tensor) -> torch.Tensor:
    _, y = checkpoint(pair, x * 2, use_reentrant=True)
    return torch.autograd.grad(y.sum(), x)[0]


def of_what_follows(x: torch.Tensor) -> torch.Tensor:
    y = checkpoint(layer, x * 2, use_reentrant=True)
    (penalty,) = torch.autograd.grad((y * y).sum(), y, create_graph=True)
    return penalty * 3


def of_a_weight(x: torch.Tensor) -> torch.Tensor:
    y = checkpoint(layer, x * 2, use_reentrant=True)
    return torch.autograd.grad(y.sum(), WEIGHT)[0]


def of_one_unused(x: torch.Tensor) -> torch.Tensor:
    y = checkpoint(layer, x * 2, use_reentrant=True)
    return torch.autograd.grad(y.sum(), (x, torch.ones(1, requires_grad=True)))[0]


def with_inputs(x: torch.Tensor) -> torch.Tensor:
    y = checkpoint(layer, x * 2, use_reentrant=True)
    y.sum().backward(inputs=[x])
    return y.detach()


def of_a_call(x: torch.Tensor) -> torch.Tensor:
    return gradient(x + 1) * 2 if x.sum() > 100 else gradient(x) * 2


def inner(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(layer, x.sin(), use_reentrant=True)


def of_calls_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    total = x.detach() * 0
    for scale in (1, 2):
        y = inner(x * scale)
        total = total + torch.autograd.grad(y.sum(), x)[0]
    return total


def caught(x: torch.Tensor) -> torch.Tensor:
    try:
        return gradient(x)
    except RuntimeError:
        return x * 5


def beside_it(x: torch.Tensor) -> torch.Tensor:
    y = checkpoint(layer, x * 2, use_reentrant=True)
    (g,) = torch.autograd.grad((x * 3).sum(), x)
    return g + y.detach()


def of_the_other_kind(x: torch.Tensor) -> torch.Tensor:
    y = checkpoint(layer, x * 2, use_reentrant=False)
    return torch.autograd.grad(y.sum(), x)[0]


def plain_backward(x: torch.Tensor) -> torch.Tensor:
    checkpoint(layer, x * 2, use_reentrant=True).sum().backward()
    return x.detach()


def outcome(program: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The text of its exception; what it returns, and the gradients that it leaves."""
    x = torch.linspace(0, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
    WEIGHT.grad = None
    text, made = "", None
    try:
        made = program(x)
    except RuntimeError as error:
        text = str(error)
    return text, (made, x.grad, WEIGHT.grad)


REFUSED = [
    gradient,
    of_a_pair,
    of_a_weight,
    of_one_unused,
    with_inputs,
    of_a_call,
    of_calls_in_a_loop,
]
COMPUTED = [of_what_follows, caught]
IN_ONE_GRAPH = [beside_it, of_the_other_kind, plain_backward]


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("program", [*REFUSED, *COMPUTED])
def test_as_in_eager(program: Callable[..., Any], backend: str) -> None:
    text, tensors = outcome(program)
    assert bool(text) == (program in REFUSED)
    compiled = braze.compile(program, backend=backend, options={"suppress_errors": False})
    for _ in range(2):
        found = outcome(compiled)
        assert found[0] == text
        torch.testing.assert_close(found[1], tensors)


@pytest.mark.parametrize("program", IN_ONE_GRAPH)
def test_no_break_where_eager_computes(program: Callable[..., Any]) -> None:
    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(outcome(compiled)[1], outcome(program)[1])


def test_the_break_says_why() -> None:
    compiled = braze.compile(gradient, backend="eager", fullgraph=True)
    with pytest.raises(GraphBreakError, match="through a reentrant"):
        compiled(torch.ones(2, 3, requires_grad=True))
