"""Floats of a byte in kernels for a GPU, by Triton's interpreter, or by a GPU: bit for bit."""

from __future__ import annotations

import pytest
import torch

from braze.ir.kernels.loops import Literal
from braze.ir.kernels.scalars import apply, cast
from tests.unit.codegen.programs import F32, pointwise
from tests.unit.codegen.triton_running import MARKS, ON_DEVICE, run

pytestmark = MARKS
DEVICE = "cuda" if ON_DEVICE else "cpu"  # a device's conversions drop the sign of what is no number
BYTES = [torch.float8_e4m3fn, torch.float8_e5m2]


def _many(dtype: torch.dtype) -> torch.Tensor:
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    halves = every.view(torch.float16).float()
    near = halves[:31744] * (1 + 2.0**-20)
    parts = [halves, every.view(torch.bfloat16).float(), near, -near]
    return torch.cat(parts).to(dtype)


@pytest.mark.parametrize("wide", [F32, torch.float16])
@pytest.mark.parametrize("dtype", BYTES)
def test_rounding(dtype: torch.dtype, wide: torch.dtype) -> None:
    x = _many(wide)
    made = pointwise(tuple(x.shape), lambda x: cast(x, dtype), wide, result=dtype)
    (found,) = run(made, [x])
    expected = x.to(DEVICE).to(dtype).cpu()
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("wide", [F32, torch.float16, torch.float64, torch.bool])
@pytest.mark.parametrize("dtype", BYTES)
def test_every_value_widened(dtype: torch.dtype, wide: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(dtype)
    made = pointwise((256,), lambda x: cast(x, wide), dtype, result=wide)
    (found,) = run(made, [x])
    torch.testing.assert_close(found, x.to(wide), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", BYTES)
def test_a_choice_of_constants(dtype: torch.dtype) -> None:
    def chosen(x: Literal) -> Literal:
        one, other = Literal(1.5, dtype), Literal(-2.0, dtype)
        return apply("where", apply("lt", x, 0.0), one, other)  # type: ignore[return-value]

    x = torch.randn(70)
    (found,) = run(pointwise((70,), chosen, F32, result=dtype), [x])
    assert torch.equal(found.float(), torch.where(x < 0, 1.5, -2.0))
