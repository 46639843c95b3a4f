"""Functions of torch's that capture answers itself, given to `compile` as they are: it interpreted
their code, where a function that calls them got the answer."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import braze
from tests.unit.capture.test_backward import breaks_of


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 3 * gradient * ctx.saved_tensors[0]


CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "a function of the program's": (Square.apply, ()),
    "a checkpoint": (checkpoint, (torch.sin,)),
    "a loss": (F.mse_loss, (torch.zeros(3),)),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_graph(name: str) -> None:
    function, others = CALLS[name]
    compiled = braze.compile(function, fullgraph=True)
    options = {"use_reentrant": False} if function is checkpoint else {}
    found = []
    for call in (function, compiled, compiled):
        x = torch.arange(3.0, requires_grad=True)
        given = (*others, x) if function is checkpoint else (x, *others)
        result = call(*given, **options)
        result.sum().backward()
        found.append((result.detach(), x.grad))
    for values in found[1:]:
        torch.testing.assert_close(values, found[0])


def test_a_branch_on_data() -> None:
    compiled = braze.compile(torch.cond, fullgraph=True)
    x = torch.arange(3.0)
    for positive in (True, False):
        found = compiled(torch.tensor(positive), torch.sin, torch.cos, (x,))
        torch.testing.assert_close(found, x.sin() if positive else x.cos())


def test_a_hook_is_registered() -> None:
    x = torch.ones(2, requires_grad=True)
    register = braze.compile(x.register_hook)
    handle = register(lambda gradient: gradient * 5)
    (x * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [10.0, 10.0]
    handle.remove()
    (x * 2).sum().backward()
    assert x.grad.tolist() == [12.0, 12.0]
    assert breaks_of(register) == []


def test_a_break_retains_the_gradient() -> None:
    """Of a tensor with a history from before the call, this is done for real, by a break."""
    x = torch.ones(2, requires_grad=True)
    hidden = x * 3
    retain = braze.compile(hidden.retain_grad)
    retain()
    (hidden * 2).sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.tolist() == [2.0, 2.0]
    assert breaks_of(retain)


def test_the_signature_stays() -> None:
    compiled = braze.compile(F.mse_loss)
    assert inspect.signature(compiled) == inspect.signature(F.mse_loss)
    assert compiled.__name__ == "mse_loss"


def test_exported() -> None:
    x, y = torch.arange(3.0), torch.ones(3)
    module = braze.export(Square.apply)(x).graph_module
    assert torch.equal(module(y), y * y)
