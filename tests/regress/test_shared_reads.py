"""Two views of one storage that are only read, beside an input that is written to: the guard that
kept the written one apart from all others asked them to be apart from each other, too."""

from __future__ import annotations

import torch

import braze
from braze.trace import Journal


def add_columns(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return total.add_(left * right)


def test_views_that_are_only_read_may_share_memory(journal: Journal) -> None:
    compiled = braze.compile(add_columns, fullgraph=True, options={"suppress_errors": False})
    for seed in range(3):
        torch.manual_seed(seed)
        pairs, total = torch.rand(5, 2), torch.rand(5)
        expected = total + pairs[:, 0] * pairs[:, 1]
        result = compiled(total, pairs[:, 0], pairs[:, 1])
        assert result is total
        torch.testing.assert_close(total, expected)
    assert len(journal.records()) == 1


def test_a_view_of_what_is_written_is_another_program() -> None:
    compiled = braze.compile(add_columns)
    pairs, total = torch.rand(5, 2), torch.rand(5)
    compiled(total, pairs[:, 0], pairs[:, 1])
    expected = pairs.clone()
    add_columns(expected[:, 0], expected[:, 0], expected[:, 1])
    compiled(pairs[:, 0], pairs[:, 0], pairs[:, 1])
    torch.testing.assert_close(pairs, expected)
