"""Dropout inside of attention, on a device. The seeds of memory-efficient attention lie elsewhere
where a call is recorded than where it is not, and its gradients are computed by another call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import braze
from braze.trace import Journal
from tests.gpu.checks import MODES, NEEDS_DEVICE, RECORDING, no_fallbacks

pytestmark = NEEDS_DEVICE
BATCH, HEADS, LENGTH, WIDTH = 2, 4, 48, 16
CALLS = 6
Call: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class Attention(nn.Module):
    """Layers of nothing but attention that drops some of its weights."""

    def __init__(self, layers: int, masked: bool) -> None:
        super().__init__()
        self.joint = nn.ModuleList([nn.Linear(64, 192) for _ in range(layers)])
        self.register_buffer("mask", torch.randn(LENGTH, LENGTH) if masked else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = None if self.mask is None else self.mask.to(x.dtype)
        for layer in self.joint:
            rows = layer(x).view(BATCH, LENGTH, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
            made = scaled_dot_product_attention(*rows, mask, dropout_p=0.3)
            x = x + made.transpose(1, 2).reshape(BATCH, LENGTH, -1)
        return x.float().square().mean()


def one_by_one(call: Call, xs: list[torch.Tensor]) -> Iterator[None]:
    """Each backward behind its forward."""
    for x in xs:
        call(x).backward()
        yield


def in_pairs(call: Call, xs: list[torch.Tensor]) -> Iterator[None]:
    """The first forward as compiled and the second one recorded, and the other way round."""
    for x in xs:
        losses = [call(x), call(x + 1)]
        for loss in losses[::-1]:
            loss.backward()
            yield


def all_pending(call: Call, xs: list[torch.Tensor]) -> Iterator[None]:
    """More forwards than there are recordings wait for their backwards, twice."""
    for _ in range(2):
        for loss in [call(x) for x in xs]:
            loss.backward()
            yield


def retained(call: Call, xs: list[torch.Tensor]) -> Iterator[None]:
    """A forward's replay, whose backward runs as compiled where it must not write over it."""
    for x in xs:
        loss = call(x)
        loss.backward(retain_graph=True)
        yield
        loss.backward()
        yield


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [one_by_one, in_pairs, all_pending, retained])
def test_gradients(
    journal: Journal, order: Any, dtype: torch.dtype, masked: bool, mode: str | None
) -> None:
    torch.manual_seed(0)
    model = Attention(4, masked).to("cuda", dtype)
    xs = [torch.randn(BATCH, LENGTH, 64, dtype=dtype, device="cuda") for _ in range(CALLS)]
    found: list[list[torch.Tensor]] = []
    with nullcontext() if mode == RECORDING else no_fallbacks(journal):  # that says what is not
        for call in (model, braze.compile(model, mode=mode)):
            torch.manual_seed(1)
            model.zero_grad()
            found.append([])
            for _ in order(call, xs):
                found[-1] += [p.grad.clone() for p in model.parameters() if p.grad is not None]
            found[-1].append(torch.rand(8, device="cuda"))  # as many numbers were drawn
    tight = {"rtol": 1e-3, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 5e-2, "atol": 2e-3}
    torch.testing.assert_close(found[1], found[0], **tight)
