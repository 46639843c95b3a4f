"""Results that view an input or another result as another dtype: any rank, with gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "complex view of an input": torch.view_as_complex,
    "real view of no dimensions": lambda x: torch.view_as_real(torch.complex(x.sum(), x.mean())),
    "real part of a transform": lambda x: torch.fft.fft(x, dim=0).real * 2,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    function = PROGRAMS[name]
    gradients = []
    for f in (function, braze.compile(function)):
        x = torch.linspace(-1, 1, 6).reshape(3, 2).clone().requires_grad_()
        result = f(x)
        assert result.requires_grad
        result.abs().square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
