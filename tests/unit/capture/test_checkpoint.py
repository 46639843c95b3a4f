"""`torch.utils.checkpoint`, both kinds: eager's gradients and random numbers, in one graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import braze
from tests.unit.capture.test_backward import breaks_of


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(6, 8)
        self.rest = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.first, x, use_reentrant=self.reentrant)
        return checkpoint_sequential(self.rest, 2, hidden * 2, use_reentrant=self.reentrant)


def trained(model: nn.Module, step: Callable[..., Any], count: int = 3) -> list[Any]:
    torch.manual_seed(0)
    found = []
    for _ in range(count):
        loss = step(model, torch.randn(5, 6))
        found += [loss.detach(), torch.rand(1), *[p.grad for p in model.parameters()]]
    return found


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("whole", [False, True], ids=["outer backward", "whole step"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
def test_gradients_and_random_numbers(reentrant: bool, whole: bool) -> None:
    torch.manual_seed(1)
    model = Checkpointed(reentrant)
    twin = copy.deepcopy(model)

    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().sum()

    def eager(model: nn.Module, x: Tensor) -> Tensor:
        loss = model(x).square().sum()
        if loss.requires_grad:
            loss.backward()
        return loss.detach()

    compiled = braze.compile(eager if whole else loss_of, fullgraph=whole)

    def compiled_step(model: nn.Module, x: Tensor) -> Tensor:
        loss: Tensor = compiled(model, x if whole else x.requires_grad_())
        if not whole:
            loss.backward()
        return loss

    def eager_step(model: nn.Module, x: Tensor) -> Tensor:
        return eager(model, x if whole else x.requires_grad_())

    expected = trained(model, eager_step)
    actual = trained(twin, compiled_step)
    for a, b in zip(actual, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b)
    if whole:
        assert breaks_of(compiled) == []
