"""Questions about where the thread is: under a transform, or in a backward of some leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import braze


def under_transform(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch._C._are_functorch_transforms_active() else x - 1


def asks_in_and_out(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.func.vmap(under_transform)(x), under_transform(x)


def in_whole_backward(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if torch.autograd._is_checkpoint_valid() else x * 3


def compiled_once(function: Callable[..., Any]) -> tuple[Any, list[int]]:
    graphs: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(len(module.graph.nodes))
        return module.forward

    return braze.compile(function, backend=backend, fullgraph=True), graphs


def test_transforms_are_asked_inside_and_outside() -> None:
    x = torch.randn(3, 2)
    for function in (under_transform, asks_in_and_out):
        compiled, graphs = compiled_once(function)
        for _ in range(20):
            torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)
        assert len(graphs) == 1


def test_transform_around_a_compiled_call_is_seen() -> None:
    x = torch.randn(3, 2)
    compiled = braze.compile(under_transform, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x - 1, rtol=0, atol=0)
        torch.testing.assert_close(torch.func.vmap(compiled)(x), x + 1, rtol=0, atol=0)


def test_engine_is_asked_again_at_each_call() -> None:
    """A backward of some leaves alone (`torch.autograd.grad`) answers no."""
    compiled, graphs = compiled_once(in_whole_backward)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Asking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            seen.append((compiled(gradient.detach()), in_whole_backward(gradient.detach())))
            return gradient

    y = torch.ones(2)
    for _ in range(20):
        torch.testing.assert_close(compiled(y), in_whole_backward(y))
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        Asking.apply(x).sum().backward()
        torch.autograd.grad(Asking.apply(x).sum(), x)
    for found, expected in seen:
        torch.testing.assert_close(found, expected)
    assert [float(expected[0]) for _, expected in seen] == [2, 3, 2, 3]
    torch.testing.assert_close(compiled(y), y * 2)
    assert (
        len(graphs) == 3
    )  # outside; in a backward, which has no grad mode, of all leaves and of some


def test_run_is_a_decorator_too() -> None:
    compiled, graphs = compiled_once(torch.sin)
    compiled(torch.ones(2))
    only = braze.run()(compiled)
    torch.testing.assert_close(only(torch.ones(2)), torch.ones(2).sin())
    torch.testing.assert_close(
        only(torch.ones(2, dtype=torch.float64)), torch.ones(2).double().sin()
    )
    assert len(graphs) == 1
