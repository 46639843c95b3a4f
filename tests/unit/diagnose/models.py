"""Small models for what finds faults: every planted fault meets an operator of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _weighed(x: Tensor) -> Tensor:
    """A sum that what is moved along the last axis changes."""
    return (x * torch.arange(1.0, x.shape[-1] + 1)).sum(-1)


class Attention(nn.Module):
    """A block of a transformer with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(self.norm(x)).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2)) / 4.0
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        weights = torch.softmax(scores.masked_fill(~mask, -1e9), -1)
        padded = F.pad((weights @ v).relu() + 1.0, (1, 1))[..., :-2]
        return x + self.out(padded).sigmoid().sum(-1, keepdim=True)


class Convolutional(nn.Module):
    """Convolution, normalization, padding and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.first(F.pad(x, (1, 1, 1, 1)))))
        return _weighed(torch.sigmoid(F.pad(y.mean((2, 3)), (2, 0))))


class Recommender(nn.Module):
    """Embeddings beside a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mlp = nn.Embedding(50, 8), nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        found = self.table((x.abs() * 7).long() % 50).flatten(1)
        both = F.pad(torch.relu(self.mlp(found)), (0, 3))
        return _weighed(torch.sigmoid(both * torch.softmax(both, -1)))


def recurrent(x: Tensor) -> Tensor:
    """A cell that is unrolled by hand."""
    state = torch.zeros(x.shape[0], 6)
    for step in x.unbind(1):
        state = torch.sigmoid(F.pad(step, (1, 0)) + torch.relu(state) * 0.5)
    return _weighed(torch.softmax(state, -1))


def losses(x: Tensor) -> Tensor:
    """A loss with smoothing, and a penalty."""
    target = torch.softmax(torch.relu(x) * 2.0, -1)
    loss = -(target * F.log_softmax(x, -1)).sum(-1)
    return loss + _weighed(F.pad(torch.sigmoid(x), (0, 2))) * 0.1


MODELS: Mapping[str, tuple[Callable[[], Callable[..., Tensor]], tuple[int, ...]]] = (
    MappingProxyType(
        {
            "attention": (Attention, (2, 7, 16)),
            "convolutional": (lambda: Convolutional().eval(), (2, 3, 9, 9)),
            "recommender": (Recommender, (5, 3)),
            "recurrent": (lambda: recurrent, (4, 3, 5)),
            "losses": (lambda: losses, (6, 11)),
        }
    )
)
