"""A block of a dense network."""

from __future__ import annotations

import torch
from torch import nn


class DenseBlock(nn.Module):
    """Layers that read all that was made before them; gives all of it, joined."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(width * (n + 1)) for n in range(layers))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(width * (n + 1), width, 3, padding=1, bias=False) for n in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [x]
        for norm, convolution in zip(self.norms, self.convolutions):
            made.append(convolution(norm(torch.cat(made, 1)).relu()))
        return torch.cat(made, 1)
