"""Dropout of a tensor that is not contiguous drew its mask in another order than eager."""

from __future__ import annotations

import pytest
import torch

import braze


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("grad", [False, True])
def test_dropout_of_a_transposed_tensor(backend: str, grad: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x.transpose(0, 1), 0.5) * 2

    x = torch.randn(5, 7, requires_grad=grad)
    torch.manual_seed(3)
    expected = function(x)
    torch.manual_seed(3)
    assert torch.equal(braze.compile(function, backend=backend)(x), expected)
    torch.manual_seed(3)
    function(x)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    braze.compile(function, backend=backend)(x)
    assert torch.equal(torch.get_rng_state(), state)
