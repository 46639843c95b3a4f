"""A result that is a piece of what nothing had put into memory (positions, masks, constants) began
at offset 0 of a storage of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import braze


def positions() -> torch.Tensor:
    return (torch.arange(6) * 3)[2:]


def of_a_view() -> torch.Tensor:
    return torch.ones(4, 6)[1:].t()[2:, ::2]


def row_repeated() -> torch.Tensor:
    return (torch.arange(2.0) + 1)[1:].expand(2)


def two_pieces() -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.arange(8)
    return values[1:], values[3:]


def base_and_piece() -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.full((5,), 2.0)
    return values[2:], values


def mask_beside(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones(8, 8, dtype=torch.bool).tril()[2 : 2 + x.shape[0], 1 : 1 + x.shape[0]]
    return x.masked_fill(mask, 0.0).exp(), mask


def _facts(results: Any) -> list[Any]:
    """What is seen of where results lie: which share memory is a part of that."""
    results = [results] if isinstance(results, torch.Tensor) else [*results]
    storages = [r.untyped_storage().data_ptr() for r in results]
    return [
        (r.shape, r.stride(), r.storage_offset(), r.untyped_storage().nbytes(), storages.index(s))
        for r, s in zip(results, storages, strict=True)
    ]


@pytest.mark.parametrize(
    "function", [positions, of_a_view, row_repeated, two_pieces, base_and_piece]
)
def test_a_piece_lies_where_eager_has_it(function: Callable[[], Any]) -> None:
    wanted, found = function(), braze.compile(function)()
    assert _facts(found) == _facts(wanted)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [(4,), (3, 5, 4)])
@pytest.mark.parametrize("carries", [False, True])
def test_beside_what_is_saved(sizes: Sequence[int], carries: bool) -> None:
    compiled = braze.compile(mask_beside)
    for size in sizes:
        x = torch.linspace(0, 1, size * size).view(size, size).requires_grad_(carries)
        wanted, found = mask_beside(x), compiled(x)
        assert _facts(found) == _facts(wanted)
        torch.testing.assert_close(found, wanted)
