"""Tensors that a program makes of sizes, the sizes that it makes of those, and sizes that it keeps
over a graph break: one more compile serves all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal

SIZES = [8, 12, 16, 24]


def divided_by_torch(x: torch.Tensor) -> torch.Tensor:
    rows = torch.div(x.size(0), 4, rounding_mode="trunc")
    return x.view(rows, 4, -1) * 2  # type: ignore[arg-type]


def counted_on(x: torch.Tensor) -> Any:
    rows = torch.div(x.size(0), 4, rounding_mode="floor")
    half = torch.floor_divide(x.size(0) + 1, torch.tensor(x.size(1)))
    return x.new_zeros(rows * 2 - 1, int(half + 1)), x[: int(-rows)], rows, half % 3


def chunked(x: torch.Tensor) -> torch.Tensor:
    """Overlapping chunks, as Longformer has them."""
    chunks = x.view(torch.div(x.size(0), 4, rounding_mode="trunc"), 4, x.size(1))  # type: ignore[arg-type]
    size, stride = list(chunks.size()), list(chunks.stride())
    size[0], stride[0] = size[0] * 2 - 1, stride[0] // 2
    return chunks.as_strided(size, stride).sin()


def made_of_sizes(x: torch.Tensor) -> Any:
    return (
        torch.tensor(x.shape),
        torch.tensor(x.shape[0], dtype=torch.int32),
        torch.tensor([x.shape[0], 0.5]),
        torch.as_tensor((x.shape[0], 7), dtype=torch.float64),
        x / torch.tensor(x.shape[0]),
    )


def made_floating(x: torch.Tensor) -> torch.Tensor:
    return x.square() / torch.tensor(x.shape[0]) * torch.tensor([x.shape[1], 0.5, 2])


def kept_over_a_break(x: torch.Tensor) -> torch.Tensor:
    size, pair = x.size(), (x.size(0) * 2, 3)
    if x.sum() > 1e9:
        return x
    return x.reshape(-1).view(size) + x.new_ones(pair).sum()


PROGRAMS = [divided_by_torch, counted_on, chunked, made_of_sizes]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_compile_more(journal: Journal, program: Callable[..., Any]) -> None:
    compiled = braze.compile(program, options={"suppress_errors": False, "verify": True})
    for size in SIZES:
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), program(x), rtol=1e-5, atol=1e-6)
    assert [record.outcome for record in journal.records()] == ["graph", "graph"]


@pytest.mark.parametrize("program", [divided_by_torch, made_floating], ids=lambda p: p.__name__)
def test_gradients(journal: Journal, program: Callable[..., Any]) -> None:
    compiled = braze.compile(program, options={"suppress_errors": False, "verify": True})
    for size in SIZES:
        x = torch.randn(size, 3, requires_grad=True)
        (expected,) = torch.autograd.grad(program(x).square().sum(), x)
        (found,) = torch.autograd.grad(compiled(x).square().sum(), x)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    forward = [r for r in journal.records() if "backward" not in r.function]
    assert len(forward) == 2


def test_sizes_that_are_kept_over_a_break(journal: Journal) -> None:
    compiled = braze.compile(kept_over_a_break, options={"suppress_errors": False})
    for size in SIZES:
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), kept_over_a_break(x))
    assert len(journal.records()) == 2 * 2  # two pieces


def test_a_size_that_does_not_fit_raises_as_eager() -> None:
    compiled = braze.compile(divided_by_torch, dynamic=True, options={"suppress_errors": False})
    compiled(torch.randn(8, 3))
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        compiled(torch.randn(7, 1))
