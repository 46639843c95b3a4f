"""A tensor begins to need gradients when there are views of it: in eager the views need them, too.
They needed none, so what was computed from them had no history."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze


def given(x: torch.Tensor) -> Any:
    y = x * 2
    row = y[0]
    y.requires_grad_()
    return row


def both(x: torch.Tensor) -> Any:
    y = x * 2
    row = y[0]
    y.requires_grad = True
    return row, y


def computed_with(x: torch.Tensor) -> Any:
    y = x * 2
    row = y[0]
    y.requires_grad_()
    return row * 3, row, y


def without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = x.clone()
        row = y[0]
    y.requires_grad_()
    return row, y


def detached(x: torch.Tensor) -> Any:
    y = x * 2
    other = y.detach()[0]
    y.requires_grad_()
    return other, y


def seen(program: Any, x: torch.Tensor) -> Any:
    results = program(x)
    results = results if isinstance(results, tuple) else (results,)
    found = [(r.tolist(), r.requires_grad, r.is_leaf, r._is_view()) for r in results]
    if results[0].grad_fn is not None:
        results[0].sum().backward()
        found.append([None if r.grad is None else r.grad.tolist() for r in results[1:]])
    return found


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("program", [given, both, computed_with, without_gradients, detached])
def test_views_need_gradients_with_their_base(program: Any, backend: str) -> None:
    x = torch.ones(2, 3)
    compiled = braze.compile(program, backend=backend)
    for _ in range(2):
        assert seen(compiled, x) == seen(program, x)
