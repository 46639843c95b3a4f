"""Conversions from and to floats of a byte, bit for bit as eager makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import braze
from braze.compat.torch.float8 import saturates_e4m3, saturates_here

LOOPS = [torch.float8_e4m3fn, torch.float8_e5m2]
BYTES = [*LOOPS, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
WIDE = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def bits(x: Tensor) -> Tensor:
    """What can be compared: of a byte its bits, else numbers, and one for what is none."""
    return x.view(torch.uint8) if x.element_size() == 1 else x.double().nan_to_num(12345.0)


def same(function: Callable[..., Tensor], *given: Tensor) -> None:
    expected = function(*given)
    found = braze.compile(function)(*given)
    assert found.dtype == expected.dtype and found.stride() == expected.stride()
    assert torch.equal(bits(found), bits(expected))


def every_value(dtype: torch.dtype) -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def many_values(dtype: torch.dtype) -> Tensor:
    """All of both half types: ties, subnormals, infinities and no numbers among them."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    parts = [every.view(torch.float16).double(), every.view(torch.bfloat16).double()]
    near = parts[0][:31744] * (1 + 2.0**-20)
    return torch.cat([*parts, near, -near, torch.randn(4096).double() * 200]).to(dtype)


def test_what_is_known_of_this_version_holds() -> None:
    assert saturates_e4m3() == saturates_here()


@pytest.mark.parametrize("wide", [*WIDE, torch.int32, torch.bool])
@pytest.mark.parametrize("dtype", BYTES)
def test_every_value_widened(dtype: torch.dtype, wide: torch.dtype) -> None:
    x = every_value(dtype)
    if wide == torch.int32:
        x = x[x.float().isfinite()]
    same(lambda x: x.to(wide), x)


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("dtype", BYTES)
def test_rounding(dtype: torch.dtype, wide: torch.dtype) -> None:
    same(lambda x: x.to(dtype), many_values(wide))


@pytest.mark.parametrize("source", [torch.int64, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("dtype", BYTES)
def test_whole_numbers(dtype: torch.dtype, source: torch.dtype) -> None:
    same(lambda x: x.to(dtype), torch.arange(-600, 600).to(source))


@pytest.mark.parametrize("other", LOOPS)
@pytest.mark.parametrize("dtype", LOOPS)
def test_from_one_to_another(dtype: torch.dtype, other: torch.dtype) -> None:
    same(lambda x: x.to(other), every_value(dtype))


@pytest.mark.parametrize("dtype", LOOPS)
def test_a_rounding_between_is_kept(dtype: torch.dtype) -> None:
    """Whoever rounds to a byte and back wants to see what that does."""
    same(lambda x: x.to(dtype).to(torch.float32) * 1, torch.randn(1000))


@pytest.mark.parametrize("dtype", LOOPS)
def test_it_is_one_kernel(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max

    def quantise(x: Tensor) -> Tensor:
        scale = x.abs().amax(1, keepdim=True).float().clamp(min=1e-6) / most
        return (x.float() / scale).clamp(-most, most).to(dtype)

    def multiply(x: Tensor, scale: Tensor) -> Tensor:
        return (x.to(torch.float32) * scale).to(torch.bfloat16)

    for function, given in (
        (quantise, (torch.randn(8, 256, dtype=torch.bfloat16),)),
        (multiply, (torch.randn(8, 256).to(dtype), torch.rand(8, 1))),
    ):
        same(function, *given)  # type: ignore[arg-type]
        braze.reset()
        explained = braze.explain(function)(*given)
        assert "extern" not in str(explained).lower() or "0 extern" in str(explained).lower()


OPERATORS: dict[str, Callable[[Any], Any]] = {
    "view": lambda x: x.view(256),
    "transpose": lambda x: x.t().contiguous(),
    "clone": lambda x: x.clone(),
    "slice": lambda x: x[2:5].clone(),
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x, x]),
    "flip": lambda x: x.flip(0),
    "where": lambda x: torch.where(x.float() > 0, x, x),
    "copy": lambda x: torch.empty_like(x).copy_(x),
    "bits": lambda x: x.view(torch.uint8) + 1,
    "index": lambda x: x[torch.tensor([1, 2])],
    "zeros": torch.zeros_like,
    "full": lambda x: torch.full_like(x, 2.0),
    "fill": lambda x: x.clone().fill_(1.5),
    "repeat": lambda x: x.repeat(2, 1),
    "expand": lambda x: x.unsqueeze(0).expand(2, 16, 16).clone(),
    "split": lambda x: x.split(8)[1].clone(),
    "isnan": lambda x: x.isnan(),
    "eq": lambda x: x == x,
    "abs": lambda x: x.abs(),
    "neg": lambda x: -x,
    "add": lambda x: x + x,
    "mul": lambda x: x * 2,
    "sum": lambda x: x.sum(),
    "max": lambda x: x.max(),
    "gather": lambda x: x.gather(0, torch.zeros(2, 16, dtype=torch.int64)),
    "masked_fill": lambda x: x.masked_fill(x.float() > 1, 0.0),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", BYTES)
def test_operators(dtype: torch.dtype, name: str) -> None:
    """Eager's result, or its error."""
    function, x = OPERATORS[name], every_value(dtype).reshape(16, 16)
    try:
        function(x)
    except (RuntimeError, TypeError) as refused:
        with pytest.raises(type(refused)):
            braze.compile(function)(x)
    else:
        same(function, x)
