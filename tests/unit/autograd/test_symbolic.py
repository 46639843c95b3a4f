"""Gradients of programs whose sizes vary: one compile serves all sizes, right each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import braze
from tests.recorded import recorded

rand = torch.randn
SIZES = ((6, 4), (3, 4), (3, 5), (9, 2))


def leaves(arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [x.clone().requires_grad_(x.is_floating_point()) for x in arguments]


def compiles(program: Callable[..., Any], calls: Sequence[Sequence[torch.Tensor]]) -> int:
    """Compare results and gradients at every call, and count the compiles of forwards."""
    options = {"suppress_errors": False, "verify": True}
    with recorded() as journal:
        compiled = braze.compile(program, dynamic=True, options=options)
    for arguments in calls:
        theirs, mine = leaves(arguments), leaves(arguments)
        torch.manual_seed(0)
        expected = program(*theirs)
        torch.manual_seed(0)
        found = compiled(*mine)
        torch.testing.assert_close(found, expected)
        tangent = torch.randn_like(expected)
        expected.backward(tangent)
        found.backward(tangent)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    assert not journal.fallbacks(), journal.fallbacks()
    return len([r for r in journal.records() if not r.function.endswith("(backward)")])


def image(batch: int, side: int) -> torch.Tensor:
    return rand(batch, 3, side + 8, side + 8)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]]]] = {
    "whole sum": (lambda x: x.sum(), lambda b, s: (rand(b, s),)),
    "mean": (lambda x: x.mean() + x.mean(-1).sum() * x.size(0), lambda b, s: (rand(b, s),)),
    "views": (lambda x: x[:, None].expand(-1, 5, -1).reshape(-1) * 2, lambda b, s: (rand(b, s),)),
    "view of the input": (lambda x: x.view(-1), lambda b, s: (rand(b, s),)),
    "cat": (
        lambda x, y: torch.cat([x, y], 1)[:, 1:].relu(),
        lambda b, s: (rand(b, s, 3), rand(b, s + 1, 3)),
    ),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0)), lambda b, s: (rand(b, s),)),
    "triangle": (
        lambda x: x.tril() + torch.ones(x.size(0), x.size(1)).triu(),
        lambda b, s: (rand(b, s),),
    ),
    "index": (lambda x, i: x[i], lambda b, s: (rand(b, s), torch.randint(0, b, (7,)))),
    "product": (lambda x, y: x @ y, lambda b, s: (rand(b, s, 3), rand(b, 3, s))),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (16,), w, b).mean(0),
        lambda b, s: (rand(b, s, 16), rand(16), rand(16)),
    ),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True).square(),
        lambda b, s: (image(b, s), rand(3), rand(3)),
    ),
    "convolution": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1, stride=2).relu(),
        lambda b, s: (image(b, s), rand(4, 3, 3, 3), rand(4)),
    ),
    "pooling": (
        lambda x: F.adaptive_avg_pool2d(F.max_pool2d(x, 3, 2, 1), 1),
        lambda b, s: (image(b, s),),
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda b, s: (rand(b, 2, s, 8), rand(b, 2, s, 8), rand(b, 2, s, 8)),
    ),
    "loss": (
        lambda x, t: F.cross_entropy(x, t),
        lambda b, s: (rand(b, s), torch.arange(b) % s),
    ),
    "embedding": (
        lambda w, t: F.embedding(t, w),
        lambda b, s: (rand(20, 8), torch.randint(0, 20, (b, s))),
    ),
    "dropout": (lambda x: F.dropout(x, 0.5), lambda b, s: (rand(b, s),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_for_all_sizes(name: str) -> None:
    program, arguments = PROGRAMS[name]
    assert compiles(program, [arguments(b, s) for b, s in SIZES]) == 1


def test_what_the_backward_assumes_is_guarded() -> None:
    """The gradient of the second operand is summed over the dimension that was broadcast."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w).tanh()

    calls = [(rand(4, 5), rand(5)), (rand(3, 6), rand(6)), (rand(3, 6), rand(1)), (rand(1, 6),) * 2]
    assert compiles(program, calls) <= 4


def test_some_gradients_do_not_come_in() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x.exp() * x.size(0)).sum(0), x[1:].cos()

    compiled = braze.compile(program, dynamic=True)
    for batch, used in ((4, 0), (5, 1), (6, 0), (7, 1)):
        theirs, mine = leaves([rand(batch, 3)] * 2)
        program(theirs)[used].sum().backward()
        compiled(mine)[used].sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_differentiable_backward() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() * x.size(0)).sum(0)

    compiled = braze.compile(program, dynamic=True)
    for batch in (4, 7):
        found = []
        for function in (program, compiled):
            x = torch.linspace(0, 1, batch * 3).view(batch, 3).requires_grad_()
            (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
            first.square().sum().backward()
            found.append(x.grad)
        torch.testing.assert_close(*found)


def test_parameters_of_another_size_are_refused() -> None:
    """No shape rule takes a size for another that no question compared it with."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (16,), w)

    compiled = braze.compile(program, dynamic=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(rand(3, 16), torch.ones(16)).shape, (3, 16))
        with pytest.raises(RuntimeError, match="weight"):
            compiled(rand(3, 16), torch.ones(8))
