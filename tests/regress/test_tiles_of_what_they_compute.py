"""A tile computes a scaled gradient and reads it again, across its vector loop.

What is read across the loop is copied before the tile's loops run; what the loops themselves
compute is not there yet. Code generation failed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import braze


@pytest.mark.parametrize("keeps_gradients", [True, False])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_clipped_gradients_of_parameters_of_transposed_shapes(
    optimizer: type[torch.optim.Optimizer], keeps_gradients: bool
) -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    theirs = copy.deepcopy(ours)

    def training(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        steps = optimizer(model.parameters(), lr=1e-2)  # type: ignore[call-arg]

        def step(x: torch.Tensor) -> torch.Tensor:
            if keeps_gradients:
                steps.zero_grad()
            loss: torch.Tensor = model(x).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            steps.step()
            if not keeps_gradients:
                steps.zero_grad()
            return loss.detach()

        return step

    compiled, eager = braze.compile(training(ours), fullgraph=True), training(theirs)
    for seed in range(5):
        x = torch.randn(6, 16, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(compiled(x), eager(x))
        for one, other in zip(ours.parameters(), theirs.parameters()):
            torch.testing.assert_close(one.grad, other.grad)
            torch.testing.assert_close(one, other)
