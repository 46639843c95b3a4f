"""Products on the CPU that are kernels of packed operands; more of them:
`python -m tests.differential.packed_products`."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

import braze
from braze.codegen.cpp import product
from braze.devices import cpu
from braze.options import Options
from braze.runtime.launch import product_rates
from braze.runtime.launch.product_rates import ProductClass, ProductShares
from braze.schedule import CPU
from tests.differential.packed_products import all_packed, check

PROGRAMS = 4


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_products_agree_with_float64(seed: int) -> None:
    differences, kernels = check(seed)
    assert not differences and kernels == 6


@pytest.mark.parametrize("depth", [256, 768, 3072])
def test_errors_are_at_most_half_above_eagers(depth: int) -> None:
    torch.manual_seed(depth)
    x, w = torch.randn(112, depth), torch.randn(96, depth)
    with torch.no_grad(), all_packed():
        report = braze.explain(lambda x, w: x @ w.t())(x, w)
    exact = x.double() @ w.double().t()
    ours, eager = ((y - exact).square().mean().sqrt() for y in (report.result, x @ w.t()))
    assert report.counters["products"] == 1 and ours < 1.5 * eager


def test_a_wrong_kernel_is_found() -> None:
    start = product._start
    with mock.patch.object(product, "_start", lambda *given: f"{start(*given)} + 1"):
        assert check(PROGRAMS)[0]


def _linear() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(70, 130), nn.GELU(), nn.Linear(130, 65)).eval()
    return model, torch.randn(2, 57, 70)


def test_changed_weights_are_never_missed() -> None:
    model, x = _linear()
    compiled = braze.compile(model, fullgraph=True)
    with torch.no_grad(), all_packed():
        for change in (
            lambda w: None,
            lambda w: w.mul_(2),
            lambda w: w.data.add_(1),
            lambda w: w.numpy().fill(0.25),
            lambda w: setattr(w, "data", torch.ones_like(w)),
        ):
            change(model[0].weight.detach())
            change(model[2].weight)
            # Sums of equal weights cancel: a missed change would differ by far more.
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_activations_are_fused_into_products() -> None:
    model, x = _linear()
    with torch.no_grad(), all_packed():
        report = braze.explain(model)(x)
    assert report.counters["products"] == report.counters["kernels"] == 2
    assert not report.extern_ops and not report.fallbacks


def test_gradients_come_from_products_of_kernels() -> None:
    model, x = _linear()
    compiled = braze.compile(model, fullgraph=True)
    with all_packed():
        report = braze.explain(model)(x.requires_grad_())
        compiled(x).square().sum().backward()
    found = [p.grad for p in (x, *model.parameters())]
    for leaf in (x, *model.parameters()):
        leaf.grad = None
    model(x).square().sum().backward()
    for mine, leaf in zip(found, (x, *model.parameters()), strict=True):
        torch.testing.assert_close(mine, leaf.grad)
    assert report.counters["products"] == 2


def test_eager_numerics_keep_the_librarys_products() -> None:
    assert cpu.DEVICE.choose(Options(numerics="eager"), CPU) is None
    assert cpu.DEVICE.choose(Options(), CPU) is not None


def test_what_cannot_be_measured_stays_with_the_library() -> None:
    model, x = _linear()

    def refuse(*_: object) -> float:
        raise RuntimeError("no clock")

    with (
        torch.no_grad(),
        all_packed(),
        mock.patch.object(ProductShares, "is_quicker", _IS_QUICKER),
        mock.patch.object(product_rates, "_measured", refuse),
        mock.patch.object(product_rates, "_VERSION", "unmeasured"),
        mock.patch.object(product_rates.SHARES, "_found", {}),
    ):
        report = braze.explain(model)(x)
        torch.testing.assert_close(report.result, model(x))
    assert "products" not in report.counters
    assert report.extern_ops == ("aten.addmm.default",)


_IS_QUICKER = ProductShares.is_quicker


@pytest.mark.parametrize(("share", "products"), [(0.5, 2), (0.92, 0)])
def test_only_what_is_clearly_quicker_is_taken(share: float, products: int) -> None:
    model, x = _linear()
    with (
        torch.no_grad(),
        all_packed(),
        mock.patch.object(ProductShares, "is_quicker", _IS_QUICKER),
        mock.patch.object(product_rates, "_share", lambda *_: share),
        mock.patch.object(product_rates.SHARES, "_found", {}),
    ):
        report = braze.explain(model)(x)
    assert report.counters["products"] == products


def test_a_class_is_measured_once_for_all_processes(tmp_path: Path) -> None:
    options = Options(cache_dir=tmp_path)
    kind = ProductClass(56, 64, 64, "r", "c")
    probe, toolchain = product.probe_unit(), product_rates.find_for_kernels(options)
    measured = mock.Mock(side_effect=product_rates._measured)
    with mock.patch.object(product_rates, "_measured", measured):
        shares = [product_rates._share(kind, 1, probe, toolchain, options) for _ in range(2)]
    assert shares[0] == shares[1] > 0 and measured.call_count == 1
