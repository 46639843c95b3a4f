"""Six kinds of faults that are planted in the compiler, and five models that each meets.

Each fault is planted by a patch of this process alone, in what every model runs: a sigmoid, ones
that are added, padding, sums, and a number that is read from an attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import final

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from braze.frozen import frozen
from braze.ir.captured.guard import GuardKind
from braze.runtime.guards.kinds import GUARD_KINDS, GuardRow
from tests.unit.diagnose.faults import FAULTS, Fault

# --- models ------------------------------------------------------------------------------------


def _shifted(x: Tensor) -> Tensor:
    """A causal convolution's way to look back: every model pads, so that a mask is there."""
    return F.pad(x, (2, 0))[..., :-2] * torch.arange(1.0, x.shape[-1] + 1)


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3), nn.Linear(8, 12)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.first(x))) * self.scale
        y = F.max_pool2d(torch.sigmoid(self.second(y)) + 1.0, 2).mean((2, 3))
        return _shifted(torch.softmax(self.head(y), -1))


class Block(nn.Module):
    """A block of GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(self.norm(x)).chunk(3, -1)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) / self.scale).masked_fill(hidden, -1e9)
        x = x + self.out(torch.softmax(scores, -1) @ v)
        y = self.up(x)
        return x + self.down(y * torch.sigmoid(y + 1.0)) + _shifted(x)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.down, self.inner = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(6, 6, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(6, 6, 2, 2), nn.Conv2d(9, 3, 1)
        self.norm = nn.GroupNorm(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(x)
        y = y * torch.sigmoid(y + 1.0) * self.scale
        y = torch.cat([self.up(torch.relu(self.norm(self.inner(y)))), x], 1)
        y = torch.softmax(self.last(y), 1)
        return _shifted(y)


class Encoder(nn.Module):
    """Compiled for every length."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.table, self.norm = nn.Embedding(32, 16), nn.LayerNorm(16)
        self.mix, self.gate = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, words: Tensor) -> Tensor:
        x = self.norm(self.table(words))
        scores = torch.softmax(x @ x.transpose(1, 2) / self.scale, -1)
        x = x + torch.sigmoid(self.gate(scores @ x) + 1.0) * self.mix(x)
        lengths = torch.arange(1.0, x.shape[1] + 1)[:, None]
        return _shifted(x / lengths).sum(1)


@final
class TrainingStep(nn.Module):
    """Forward, backward and a step of SGD of a perceptron, in one function."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.5
        self.first, self.last = nn.Linear(10, 24), nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(torch.relu(self.first(x)) + 1.0)
        probabilities = torch.softmax(self.last(y), -1)
        loss = _shifted(probabilities).square().mean()
        found = torch.autograd.grad(loss, [*self.parameters()])
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters(), found, strict=True):
                parameter.sub_(gradient * self.scale)
        return loss.detach()


@frozen
class Model:
    """make: the module; inputs: of a call; dynamic: how it is compiled."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    dynamic: bool | None = None


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "CNN": Model(lambda: CNN().eval(), lambda: torch.randn(2, 3, 9, 9)),
        "GPT block": Model(Block, lambda: torch.randn(2, 7, 16)),
        "training step": Model(TrainingStep, lambda: torch.randn(5, 10)),
        "UNet": Model(UNet, lambda: torch.randn(1, 3, 8, 8)),
        "encoder": Model(Encoder, lambda: torch.randint(32, (3, 6)), dynamic=True),
    }
)

# --- faults ------------------------------------------------------------------------------------


def _bad_guard(patch: pytest.MonkeyPatch) -> None:
    """What is asked of numbers and texts holds for all of them."""
    for kind in (GuardKind.EQUALS_MATCH, GuardKind.COMPARES):
        patch.setitem(GUARD_KINDS, kind, GuardRow(lambda *_: "True", lambda *_: None))


_KINDS = ("crash in lowering", "wrong constant", "wrong index", "missing mask", "reordering")
PLANTED = {
    **{kind: FAULTS[kind] for kind in _KINDS},
    "bad guard": Fault(_bad_guard, "wrong value", "guards", operator="mul"),
}
