"""Methods of an autograd function may be static, of the class, or plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def of_class(function: Callable[..., Any]) -> Any:
    return classmethod(lambda cls, *args: function(*args))


def as_it_is(function: Callable[..., Any]) -> Any:
    return function


def scale(ctx: Any, x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    ctx.factor = factor
    return x * factor


def scale_alone(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


def keep_factor(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


def scale_back(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    return gradient * ctx.factor * 10, None


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("has_setup", [False, True])
@pytest.mark.parametrize("kind", [staticmethod, of_class, as_it_is])
def test_each_kind_of_method_is_one_graph(kind: Any, has_setup: bool, backend: str) -> None:
    space: dict[str, Any] = {"backward": kind(scale_back)}
    if has_setup:
        space |= {"forward": kind(scale_alone), "setup_context": kind(keep_factor)}
    else:
        space |= {"forward": kind(scale)}
    cls: Any = type("Scale", (torch.autograd.Function,), space)

    def program(x: torch.Tensor) -> torch.Tensor:
        return cls.apply(x.sin(), 3.0).sum()  # type: ignore[no-any-return]

    found = []
    for function in (program, braze.compile(program, backend=backend, fullgraph=True)):
        x = torch.linspace(0, 1, 4).requires_grad_()
        result = function(x)
        result.backward()
        found.append((result.detach(), x.grad))
    torch.testing.assert_close(found[1], found[0])
