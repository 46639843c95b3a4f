"""Special functions of generated code against eager, beyond the samples of the operator sweep."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze

ARGUMENTS = (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, -3.0, 30.0, 60.0, torch.inf, -torch.inf, torch.nan)
# Eager's own error in float64, relative to the largest value: its rational approximations of
# oscillating functions are that far off near their zeros.
TOLERANCES = dict.fromkeys(("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"), 1e-6)

ONE_OPERAND: dict[str, Callable[..., torch.Tensor]] = {
    name: getattr(torch.special, name)
    for name in (
        "digamma erfcx erfinv ndtri log_ndtr i0 i0e i1 i1e bessel_j0 bessel_j1 bessel_y0 bessel_y1 "
        "modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1"
    ).split()
}
ONE_OPERAND |= {f"polygamma_{n}": lambda x, n=n: torch.polygamma(n, x) for n in (1, 2, 5)}
POLYNOMIALS = [name for name in dir(torch.special) if "polynomial" in name]


def arguments() -> torch.Tensor:
    torch.manual_seed(0)
    drawn = [torch.randn(100), torch.randn(100) * 12, torch.rand(100), torch.rand(50) * 1e-4]
    return torch.cat([*drawn, 1 - torch.rand(50) * 1e-4, torch.tensor(ARGUMENTS)]).double()


@pytest.mark.parametrize("name", list(ONE_OPERAND))
def test_one_operand(name: str) -> None:
    function, x = ONE_OPERAND[name], arguments()
    if name == "polygamma_1":
        x = x[(x > 0) | (x != x.floor())]  # at the poles eager has the rounding error of a sine
    report = braze.explain(lambda x: function(x))(x)
    assert not report.extern_ops and not report.fallbacks and not report.break_count
    tolerance = TOLERANCES.get(name, 1e-9)
    torch.testing.assert_close(
        report.result, function(x), rtol=tolerance, atol=tolerance, equal_nan=True
    )


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_orthogonal_polynomials(name: str) -> None:
    function = getattr(torch.special, name)
    x = arguments()[:400]
    x = x[x.isfinite()]
    degree = torch.arange(x.numel(), dtype=x.dtype) % 23 - 2
    report = braze.explain(lambda x, n: function(x, n))(x, degree)
    assert not report.extern_ops and not report.fallbacks
    torch.testing.assert_close(report.result, function(x, degree), rtol=1e-9, atol=1e-9)


def test_zeta() -> None:
    x = arguments()
    x = x[x.isfinite()]
    s, q = x.abs() + 1, x.flip(0)
    report = braze.explain(lambda s, q: torch.special.zeta(s, q))(s, q)
    assert not report.extern_ops
    expected = torch.special.zeta(s, q)
    torch.testing.assert_close(report.result, expected, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_greatest_common_divisor(dtype: torch.dtype) -> None:
    x = torch.arange(-60, 60).to(dtype).repeat(20)
    y = torch.arange(-1200, 1200).to(dtype)
    report = braze.explain(lambda x, y: (torch.gcd(x, y), torch.lcm(x, y)))(x, y)
    assert not report.extern_ops
    expected = (torch.gcd(x, y), torch.lcm(x, y))
    for got, want in zip(report.result, expected, strict=True):
        assert torch.equal(got, want)


def test_frexp() -> None:
    x = arguments()
    report = braze.explain(lambda x: torch.frexp(x))(x)
    want = torch.frexp(x)
    assert not report.extern_ops
    torch.testing.assert_close(report.result.mantissa, want.mantissa, equal_nan=True)
    finite = x.isfinite()
    assert torch.equal(report.result.exponent[finite], want.exponent[finite])
