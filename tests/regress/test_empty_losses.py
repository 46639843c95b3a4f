"""Losses of nothing, with gradients: PyTorch's meta kernels divide by the number of elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import braze
from tests.recorded import recorded

_LOSSES = (
    functional.mse_loss,
    functional.huber_loss,
    functional.smooth_l1_loss,
    functional.l1_loss,
)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", _LOSSES, ids=lambda loss: loss.__name__)
def test_losses_of_nothing_have_gradients(
    loss: Callable[..., torch.Tensor], reduction: str
) -> None:
    with recorded() as journal:
        compiled = braze.compile(lambda a, b: loss(a, b, reduction=reduction), fullgraph=True)
        for rows in (0, 3):
            a, b = torch.randn(rows, 4, requires_grad=True), torch.randn(rows, 4)
            got, expected = compiled(a, b), loss(a, b, reduction=reduction)
            torch.testing.assert_close(got, expected, equal_nan=True)
            given = torch.ones_like(expected)
            (ours,), (wanted,) = (torch.autograd.grad(x, a, given) for x in (got, expected))
            torch.testing.assert_close(ours, wanted, equal_nan=True)
    assert not [record.fallbacks for record in journal.records() if record.fallbacks]
