"""`x[mask] = value` where the value has a gradient, as speech models write their mask's embedding:
the backward asked for as many rows as the mask is true, for which it has no symbol, and failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

MASK = torch.tensor([[True, False, True], [False, False, True]])


def by_item(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y[mask] = value
    return y


def by_view(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y.view(6, 4)[mask.view(-1)] = value
    return y


def by_index_put(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.index_put(x.sin(), (mask,), value)


def in_place(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    return y.index_put_([mask], value) + y


def accumulated(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.index_put(x.sin(), (mask,), value, accumulate=True)


def _gradients(function: Callable[..., torch.Tensor], shape: tuple[int, ...]) -> Any:
    generator = torch.Generator().manual_seed(0)
    x, value = [torch.randn(s, generator=generator, requires_grad=True) for s in ((2, 3, 4), shape)]
    result = function(x, MASK, value)
    return result, *torch.autograd.grad(result.cos().sum(), [x, value])


@pytest.mark.parametrize("function", [by_item, by_view, by_index_put, in_place, accumulated])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 4), (3, 4)], ids=str)
def test_gradients(function: Callable[..., torch.Tensor], shape: tuple[int, ...]) -> None:
    compiled = braze.compile(function, options={"suppress_errors": False})
    torch.testing.assert_close(_gradients(compiled, shape), _gradients(function, shape))


@pytest.mark.parametrize("shape", [(), (4,)], ids=str)
def test_what_is_spread_over_the_mask_is_one_graph(shape: tuple[int, ...]) -> None:
    x, value = torch.randn(2, 3, 4), torch.randn(shape, requires_grad=True)
    report = braze.explain(by_item)(x, MASK, value)
    assert (report.graph_count, report.break_count) == (1, 0)
    assert not report.extern_ops


def test_what_eager_refuses_is_refused() -> None:
    def expanded(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        x = x.expand(2, 3, 4)
        x[MASK] = value
        return x

    def unread(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        y = x.double()
        y[MASK] = value  # nobody reads it, and no kernel would say that the dtypes differ
        return x + 1

    cases: list[tuple[Callable[..., torch.Tensor], torch.Tensor, torch.Tensor]] = [
        (lambda x, v: by_item(x, MASK, v), torch.randn(2, 3, 4), torch.randn(5)),
        (lambda x, v: by_index_put(x, MASK, v), torch.randn(2, 3, 4), torch.ones(4).double()),
        (expanded, torch.randn(4), torch.randn(4)),
        (unread, torch.randn(2, 3, 4), torch.randn(4)),
    ]
    for function, x, value in cases:
        outcomes = []
        for call in (function, braze.compile(function)):
            try:
                outcomes.append(call(x.clone(), value).tolist())
            except (RuntimeError, IndexError) as error:
                outcomes.append(type(error).__name__)
        assert outcomes[0] == outcomes[1], outcomes
