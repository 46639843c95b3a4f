"""A float that the program computes, beside a tensor that was written to."""

from __future__ import annotations

import pytest
import torch

import braze


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_the_result_has_the_dtype_of_a_float(backend: str) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(1).mul_(0.5)
        y = x + w[0].item()
        return y, y.mul(2).add_(1)

    def inputs() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(3, 2, requires_grad=True).t() * 1, torch.tensor([7.0, 1.0])

    compiled = braze.compile(function, backend=backend, options={"suppress_errors": False})
    for expected, found in zip(function(*inputs()), compiled(*inputs())):
        assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
        assert torch.equal(found, expected)
