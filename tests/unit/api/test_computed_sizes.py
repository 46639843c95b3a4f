"""Sizes and numbers that depend on data: results as eager's at other values, one compile."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.trace import JOURNAL

Program = Callable[..., Any]
ASKED = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


@pytest.fixture(autouse=True)
def _clean() -> None:
    JOURNAL.clear()


def compiles(program: Program, calls: Sequence[Sequence[Any]], **named: Any) -> int:
    """Call the program and its compiled form in one graph, compare, and count the compiles. A run
    that falls back is an error."""
    options = {**ASKED, "suppress_errors": False, "verify": True}
    compiled = braze.compile(program, fullgraph=True, options=options, **named)
    before = len(JOURNAL.records())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", braze.errors.BrazeWarning)
        for arguments in calls:
            expected = program(*arguments)
            found = compiled(*arguments)
            torch.testing.assert_close(found, expected)
    assert not JOURNAL.fallbacks(), JOURNAL.fallbacks()
    return len(JOURNAL.records()) - before


def masks(*shape: int) -> list[torch.Tensor]:
    """All, some, one, and no true element, and some again."""
    generator = torch.Generator().manual_seed(1)
    some = [torch.rand(shape, generator=generator) > share for share in (0.3, 0.8, 0.5)]
    one = torch.zeros(shape, dtype=torch.bool)
    one.view(-1)[-1] = True
    return [some[0], torch.ones(shape, dtype=torch.bool), one, one & False, *some[1:]]


def counts(*values: int) -> list[torch.Tensor]:
    return [torch.tensor(value) for value in values]


X = torch.arange(48.0).reshape(8, 6).sin()


def sliced(x: torch.Tensor, n: torch.Tensor) -> Any:
    k = n.item()
    torch._check(k >= 0)
    return x[:k] * 2, x[k:].exp(), x[:, :k].sum(1)


def by_int(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x * int(n) + x.new_ones(8, 6) * int(n + 0.5)


def made(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    k = n.item()
    torch._check_is_size(k)
    return (torch.arange(k).float()[:, None] * x[0] + torch.zeros(k, 6)).relu()


def listed(x: torch.Tensor, n: torch.Tensor) -> Any:
    first, second = torch.stack([n, 8 - n]).tolist()
    top, rest = x.split([first, second])
    return top.exp(), rest.neg() + second


def returned(x: torch.Tensor, n: torch.Tensor) -> Any:
    k = n.item()
    return k, k * 2 + 1, k > 3, x + k


def repeated(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    k = n.item()
    torch._check_is_size(k, max=100)
    return x.sum(0).expand(k, 6).reshape(-1).cos()


ON_NUMBERS = [sliced, by_int, made, listed, returned, repeated]


@pytest.mark.parametrize("program", ON_NUMBERS, ids=lambda p: p.__name__)
def test_numbers(program: Program) -> None:
    calls = [(X, n) for n in counts(3, 5, 1, 0, 8, 2)]
    assert compiles(program, calls) == 1


def nonzero(x: torch.Tensor, mask: torch.Tensor) -> Any:
    places = mask.nonzero()
    return places * 2, x[places[:, 0]].exp()


def masked_rows(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x[mask.any(1)].sin() @ x.mT


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    chosen = x[mask]
    return chosen * 3 - chosen.sum()


def selected(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.masked_select(x, mask).exp()


def positions(x: torch.Tensor, mask: torch.Tensor) -> Any:
    rows, columns = torch.where(mask)
    return rows + columns, torch.argwhere(mask)


def distinct(x: torch.Tensor, mask: torch.Tensor) -> Any:
    numbers = mask.sum(1)
    found, inverse, number = numbers.unique(return_inverse=True, return_counts=True)
    return found * 2, inverse + 1, number, numbers.unique(), torch.unique_consecutive(numbers)


def distinct_rows(x: torch.Tensor, mask: torch.Tensor) -> Any:
    return torch.unique(mask.long(), dim=0), torch.unique(mask.long(), dim=0, return_inverse=True)


def spread(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(mask.sum(1), dim=0).exp()


def written(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[mask] = y[mask] * 2 + 1
    return y


def masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(x[mask], torch.zeros(6, 8).T[mask])


def expert_layers(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A mixture of experts, each for the rows that are routed to it."""
    choice = mask.sum(1) % 3
    out = torch.zeros_like(x)
    for expert in range(3):
        (rows,) = torch.where(choice == expert)
        weight = torch.full((6, 6), 0.1 * (expert + 1))
        out.index_add_(0, rows, (x[rows] @ weight).relu())
    return out


ON_SIZES = [
    *(nonzero, masked_rows, masked, selected, positions, distinct, distinct_rows, spread),
    *(written, masked_mean, expert_layers),
]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", ON_SIZES, ids=lambda p: p.__name__)
def test_sizes(program: Program, dynamic: bool | None) -> None:
    calls = [(X, mask) for mask in masks(8, 6)]
    if program is masked_mean:  # eager's mean of nothing is no number
        del calls[3]
    assert compiles(program, calls, dynamic=dynamic) == 1
