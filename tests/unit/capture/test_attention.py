"""Masks of attention that mask nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

import braze


def _positions(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    index = torch.arange(q.shape[2])
    return index[:, None], index[None]


def nothing(q: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    rows, _ = _positions(q)
    mask = (rows >= 0)[None, None].expand(q.shape[0], 1, q.shape[2], q.shape[2])
    return attention(q, q, q, attn_mask=mask)


def nothing_by_position(q: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    rows, columns = _positions(q)
    return attention(q, q, q, (rows - columns) < 100, 0.0)


def causal(q: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    rows, columns = _positions(q)
    return attention(q, q, q, rows >= columns)


def padded(q: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    rows, _ = _positions(q)
    return attention(q, q, q, attn_mask=(rows >= 0) & padding)


@pytest.mark.parametrize(
    ("program", "is_left_out"),
    [(nothing, True), (nothing_by_position, True), (causal, False), (padded, False)],
)
def test_only_masks_without_effect_are_left_out(
    program: Callable[..., torch.Tensor], is_left_out: bool
) -> None:
    q, padding = torch.randn(2, 3, 16, 8), torch.rand(16) > 0.3
    found = braze.explain(program)(q, padding)
    torch.testing.assert_close(found.result, program(q, padding))
    assert found.break_count == 0
    assert ("aten.where.self" not in found.ops_per_graph[0]) is is_left_out
