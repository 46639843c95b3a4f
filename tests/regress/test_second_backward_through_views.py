"""A write through a view frees its part of the history: a second backward is refused in eager, and
gave gradients once more."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze


def through_base(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    z = z * 1
    z.view(-1).sub_(x)
    z.sum().backward()
    return z


def through_view(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    z = z * 1
    view = z.view(-1)
    view -= x
    view.sum().backward()
    return z


def no_view(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    z = z * 1
    z -= x
    z.sum().backward()
    return z


def outcome(program: Any) -> Any:
    x, z = torch.ones(3, requires_grad=True), torch.ones(3)
    result = program(x, z)
    try:
        result.sum().backward()
    except RuntimeError as error:
        return str(error).partition("(")[0], x.grad.tolist()  # type: ignore[union-attr]
    return x.grad.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("program", [through_base, through_view, no_view])
def test_what_is_refused_is_what_eager_refuses(program: Any, backend: str) -> None:
    assert outcome(braze.compile(program, backend=backend)) == outcome(program)
    assert (program is no_view) is (type(outcome(program)) is list)
