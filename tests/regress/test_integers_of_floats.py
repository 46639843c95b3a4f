"""A float that becomes an integer and a float again: what no integer holds is lost on the way, and
so is the sign of zero."""

from __future__ import annotations

import pytest
import torch

import braze

_INTEGERS = (torch.int32, torch.int64, torch.int16, torch.uint8)


def _bits(x: torch.Tensor) -> list[str]:
    return [repr(n) for n in x.tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("integers", _INTEGERS)
def test_round_trips_are_eagers(integers: torch.dtype, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = x.to(integers)
        chosen = torch.where(x > 0, whole, x.abs().to(integers))
        return whole.to(dtype), whole.to(dtype) + 1, whole, chosen.to(dtype)

    x = torch.tensor([-0.3, 1e30, -1e30, float("nan"), 2.7, -0.0] * 7).to(dtype)
    if integers is torch.uint8:  # eager's own kernels differ for negative numbers
        x = x.abs()
    compiled = braze.compile(program, fullgraph=True)
    for one, other in zip(program(x), compiled(x)):
        assert _bits(one) == _bits(other)
    assert braze.explain(program)(x).graph_count == 1
