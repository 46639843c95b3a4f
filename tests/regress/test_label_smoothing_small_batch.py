"""A small static batch: the sum over its rows is unrolled behind the loop that makes them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import braze


@pytest.mark.parametrize("number", [1, 2, 4, 6])
def test_label_smoothing_of_a_small_batch(number: int) -> None:
    def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, target, label_smoothing=0.1)

    target = torch.arange(number) % 4
    ours = torch.randn(number, 4).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    compiled = braze.compile(loss_of, fullgraph=True, dynamic=False)
    found, expected = compiled(ours, target), loss_of(theirs, target)
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
