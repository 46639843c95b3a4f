"""The gradients of a batch norm over one image whose gradient comes channels-last.

`flatten(2).transpose(1, 2)` of one image, as patch embeddings do it, gives the backward a gradient
of strides (3, 1, 21, 3). PyTorch 2.11 to 2.13's own CPU kernel sums other elements then; Braze lays
the gradient out first. So the sums are the oracle here, not eager.
"""

from __future__ import annotations

import torch
from torch import nn

import braze


def test_bias_gets_the_sums_of_the_gradient() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3).train()

    def program(x: torch.Tensor) -> torch.Tensor:
        return norm(x).flatten(2).transpose(1, 2)

    x, gradient = torch.randn(1, 3, 7, 7), torch.randn(1, 49, 3)
    (braze.compile(program)(x) * gradient).sum().backward()
    normalised = nn.BatchNorm2d(3, affine=False).train()(x).flatten(2).transpose(1, 2)
    torch.testing.assert_close(norm.bias.grad, gradient.sum((0, 1)))
    torch.testing.assert_close(norm.weight.grad, (gradient * normalised).sum((0, 1)))
