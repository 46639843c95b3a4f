"""A detached view that a frame returns carries no gradient, though what it views does."""

from __future__ import annotations

import pytest
import torch

import braze


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views of an input and of a result, detached and not."""
    doubled = x * 2
    return x.detach(), doubled, doubled.detach(), doubled[0], x[0]


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "aot_eager_decomp_partition", "eager"])
def test_detached_views(backend: str) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    expected = views(x)
    found = braze.compile(views, backend=backend)(x)
    for a, b in zip(expected, found, strict=True):
        assert (b.requires_grad, b.is_leaf) == (a.requires_grad, a.is_leaf)
        torch.testing.assert_close(b, a)
    assert found[0].data_ptr() == x.data_ptr() and found[2].data_ptr() == found[1].data_ptr()
