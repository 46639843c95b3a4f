"""A region without autocast inside of a call under autocast: the graph's operators, casts among
them, are not cast again when it runs."""

from __future__ import annotations

import pytest
import torch

import braze


def two_products(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same product in bfloat16 and in float32."""
    half = x @ w
    with torch.autocast("cpu", enabled=False):
        full = x @ w
    return half, full


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "aot_eager_decomp_partition"])
@pytest.mark.parametrize("grad", [False, True])
def test_region_without_autocast(backend: str, grad: bool) -> None:
    x, w = (torch.randn(32, 32).requires_grad_(grad) for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16):
        expected = two_products(x, w)
        found = braze.compile(two_products, backend=backend)(x, w)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a, b)
    if grad:
        wanted = torch.autograd.grad(expected[1].sum(), x)
        torch.testing.assert_close(torch.autograd.grad(found[1].sum(), x), wanted)
