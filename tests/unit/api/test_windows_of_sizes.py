"""Images in padded, shifted windows, as Swin has them: one more compile serves all sizes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import braze
from braze.trace import Journal

WINDOW = 4
SIDES = [(2, 17, 18), (3, 22, 25), (5, 33, 29), (4, 30, 34)]


def windows(x: torch.Tensor) -> torch.Tensor:
    batch, height, width, channels = x.shape
    right, below = (WINDOW - width % WINDOW) % WINDOW, (WINDOW - height % WINDOW) % WINDOW
    x = functional.pad(x, (0, 0, 0, right, 0, below))
    _, high, wide, _ = x.shape
    x = torch.roll(x, shifts=(-2, -2), dims=(1, 2))
    x = x.view(batch, high // WINDOW, WINDOW, wide // WINDOW, WINDOW, channels)
    x = x.transpose(2, 3).contiguous().view(-1, WINDOW * WINDOW, channels).softmax(1)
    x = x.view(-1, high // WINDOW, wide // WINDOW, WINDOW, WINDOW, channels)
    x = x.transpose(2, 3).contiguous().view(-1, high, wide, channels)
    x = torch.roll(x, shifts=(2, 2), dims=(1, 2))[:, :height, :width, :].contiguous()
    return x.view(batch, height * width, channels)


def pooled(x: torch.Tensor) -> torch.Tensor:
    found = functional.adaptive_avg_pool1d(windows(x).transpose(1, 2), 1)
    turned = windows(x).transpose(1, 2)
    return found.flatten(1) + turned.amax(-1) + functional.normalize(turned, dim=-1).sum(-1)


@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "gradients"])
def test_one_compile_more(journal: Journal, gradient: bool) -> None:
    compiled = braze.compile(pooled, options={"suppress_errors": False, "verify": True})
    for batch, height, width in SIDES:
        x = torch.randn(batch, height, width, 3, dtype=torch.float64, requires_grad=gradient)
        expected, found = pooled(x), compiled(x)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        assert found.stride() == expected.stride()
        if gradient:
            (wanted,) = torch.autograd.grad(expected.square().sum(), x)
            (made,) = torch.autograd.grad(found.square().sum(), x)
            torch.testing.assert_close(made, wanted, rtol=1e-8, atol=1e-12)
    forward = [record for record in journal.records() if "backward" not in record.function]
    assert len(forward) == 2


def test_rolls_of_all_kinds(journal: Journal) -> None:
    def rolled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.roll(1, 0),
            x.roll((3, -7), (0, 0)),
            x.roll(x.shape[0] // 2, 1),
            x.roll(2),
            x.T.roll(1, 0),
            x.roll((1, -1), (-1, 0)),
        )

    compiled = braze.compile(rolled, options={"suppress_errors": False, "verify": True})
    for rows, columns in [(4, 6), (5, 9), (8, 3), (17, 64)]:
        x = torch.randn(rows, columns)
        for found, expected in zip(compiled(x), rolled(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
            assert found.stride() == expected.stride()
    assert len(journal.records()) == 2
