"""Small modules with the same numbers in every process."""

from __future__ import annotations

import torch
from torch import nn

from tests.regress.programs import tensor


def linear(rows=3, columns=3):
    """A layer with the same numbers in every process."""
    made = nn.Linear(columns, rows)
    with torch.no_grad():
        made.weight.copy_(tensor(rows, columns))
        made.bias.copy_(tensor(rows))
    return made


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = linear()
        self.second = linear()

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))
