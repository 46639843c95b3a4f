"""Padded products, channels-last convolutions, moments in one read, tuning, shared memory: each on
a device beside eager, by the rules of a device."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.devices import cuda
from braze.ir.device_model import H200
from braze.options import config
from braze.rewrite.align_products import align_products, rates_of
from braze.rewrite.prefer_channels_last import PRICES
from tests.gpu.checks import MODES, NEEDS_DEVICE, RECORDING

pytestmark = NEEDS_DEVICE


def _always_align(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = dict.fromkeys((2, 4, 8), 1.0)
    always = dataclasses.replace(rates_of(H200), unaligned=slow, call=0.0, worth=1.0)
    monkeypatch.setattr(align_products, "__defaults__", ({"cuda": always},))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bias", [False, True])
def test_logits_of_an_odd_vocabulary(
    mode: str | None, bias: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What the caller sees is there once, and nothing beside it that is read no more."""
    torch.manual_seed(0)
    head = nn.Linear(256, 30003, bias=bias, device="cuda", dtype=torch.bfloat16)

    def function(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = head(x.sin().exp() + 1)
        return found

    compiled = braze.compile(function, mode=mode)
    with torch.no_grad(), caplog.at_level(logging.INFO, "braze.fusion"):
        for _ in range(4):
            x = torch.randn(2048, 256, device="cuda", dtype=torch.bfloat16)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            found = compiled(x)
            peak = torch.cuda.max_memory_allocated() - before
            wanted = function(x)
            assert found.stride() == wanted.stride()
            torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
        assert peak <= found.nbytes + x.nbytes + (1 << 20)
    assert "which writes rows of any alignment" in caplog.text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_vocabulary_of_an_odd_size(
    dtype: torch.dtype, mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _always_align(monkeypatch)
    torch.manual_seed(0)
    words = nn.Embedding(1003, 64, device="cuda", dtype=dtype)
    tokens = torch.randint(0, 1003, (4, 32), device="cuda")

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        logits = nn.functional.linear(words(tokens).sin(), words.weight)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    def gradient(function: Any) -> torch.Tensor:
        return torch.autograd.grad(function(tokens), words.weight)[0]

    compiled = braze.compile(loss, mode=mode)
    for _ in range(4):
        torch.testing.assert_close(compiled(tokens), loss(tokens), rtol=1e-2, atol=1e-2)
        found, wanted = gradient(compiled), gradient(loss)
        assert (found - wanted).norm() <= 2e-2 * wanted.norm()


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = [(3, 32, 3), (32, 64, 3), (64, 64, 1), (64, 128, 3)]
        self.convs = nn.ModuleList(
            [nn.Conv2d(a, b, k, padding=k // 2, bias=False) for a, b, k in sizes]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(b) for _, b, _ in sizes])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms):
            x = norm(conv(x)).relu()
        return x


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_channels_last(dtype: torch.dtype, mode: str | None) -> None:
    assert PRICES["cuda"].only_matrix_units
    torch.manual_seed(0)
    model = Images().to("cuda", dtype).eval()
    compiled = braze.compile(model, mode=mode)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(4, 3, 40, 36, device="cuda", dtype=dtype)
            found, wanted = compiled(x), model(x)
            assert found.stride() == wanted.stride()
            torch.testing.assert_close(found, wanted, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_channels_last(dtype: torch.dtype, mode: str | None, whole: bool) -> None:
    """Gradients have the parameters' strides, and are as near to float64 as eager's."""
    torch.manual_seed(0)
    nets = [Images().to("cuda", dtype)]
    nets += [copy.deepcopy(nets[0]), copy.deepcopy(nets[0]).double()]

    def step_of(net: nn.Module, call: Any) -> Any:
        def step(x: torch.Tensor) -> torch.Tensor:
            y = call(x)
            y.float().square().mean().backward()
            return y.detach()

        return step

    calls = [step_of(net, net) for net in nets]
    calls[0] = (
        braze.compile(step_of(nets[0], nets[0]), mode=mode)
        if whole
        else step_of(nets[0], braze.compile(nets[0], mode=mode))
    )
    for _ in range(4):
        x = torch.randn(4, 3, 40, 36, device="cuda", dtype=dtype)
        results = [call(x.to(next(net.parameters()).dtype)) for call, net in zip(calls, nets)]
        assert results[0].stride() == results[1].stride()
        gradients = [[p.grad for p in net.parameters()] for net in nets]
        for mine, theirs in zip(gradients[0], gradients[1], strict=True):
            assert mine is not None and theirs is not None and mine.stride() == theirs.stride()
        flat = [torch.cat([g.double().flatten() for g in found]) for found in gradients]  # type: ignore[union-attr]
        errors = [(found - flat[2]).norm() / flat[2].norm() for found in flat[:2]]
        assert errors[0] <= 2 * errors[1] + 1e-3
        for net in nets:
            net.zero_grad()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_statistics_in_one_read(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    mine, theirs = (nn.BatchNorm2d(24, device="cuda") for _ in range(2))
    x = (torch.randn(64, 24, 32, 32, device="cuda") + 10).to(memory_format=layout)
    found, wanted = braze.compile(mine)(x), theirs(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    for a, b in zip(mine.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.fixture
def _own_cache(tmp_path: Path) -> Iterator[Path]:
    with config.patch(cache_dir=tmp_path):
        yield tmp_path


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_tuning_is_remembered(_own_cache: Path, mode: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1) + x.sum(0)

    x = torch.randn(2048, 1000, device="cuda")
    seen = []
    for _ in range(2):
        compiled = braze.compile(program, mode=mode)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), program(x), rtol=1e-4, atol=1e-4)
        seen.append({p.name: p.read_text() for p in (_own_cache / "tuning").iterdir()})
    assert seen[0] and seen[0] == seen[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_that_tuning_asks_about(
    dtype: torch.dtype, _own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is quicker; then with the library left out of the choice."""

    def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.bmm(q, k.transpose(1, 2)) * 0.125

    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(nn.functional.linear(x, w, b))

    torch.manual_seed(0)
    shapes = {scores: [(12, 200, 64), (12, 200, 64)], layer: [(4, 100, 96), (130, 96), (130,)]}
    for is_forced in (False, True):
        if is_forced:
            monkeypatch.setattr(cuda, "quickest_way", lambda *_: 1)
        for function, sizes in shapes.items():
            given = [torch.randn(size, device="cuda").to(dtype) / 2 for size in sizes]
            compiled = braze.compile(function, mode="max-autotune-no-cudagraphs")
            with torch.no_grad():
                found, wanted = compiled(*given), function(*given)
            exact = function(*[x.double() for x in given])
            error, theirs = ((x.double() - exact).norm() for x in (found, wanted))
            assert found.stride() == wanted.stride() and error <= 2 * theirs
    assert any("library" in p.read_text() for p in (_own_cache / "tuning").iterdir())


def test_a_rotary_embedding_by_complex_numbers() -> None:
    def turned(q: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(q)

    q = torch.randn(2, 33, 5, 24, device="cuda").bfloat16()
    turns = torch.polar(torch.ones(33, 12), torch.randn(33, 12)).cuda()
    torch.testing.assert_close(braze.compile(turned)(q, turns), turned(q, turns))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("window", [(3, 2, 1), (2, 2, 0), (3, 1, 1)])
def test_gradients_behind_a_pool_and_a_norm(
    window: tuple[int, int, int], layout: torch.memory_format
) -> None:
    """A norm, a relu and max pooling; nearly all maxima are ones of their own."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(64, device="cuda")
    scale = torch.randn(64, 1, 1, device="cuda")

    def function(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.max_pool2d(norm(x * scale).relu(), *window).square().sum()

    def gradients(called: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(called(x), [x, *norm.parameters()])

    compiled = braze.compile(function)
    for _ in range(3):
        x = torch.randn(8, 64, 56, 56, device="cuda").to(memory_format=layout).requires_grad_()
        for mine, right in zip(gradients(compiled, x), gradients(function, x), strict=True):
            assert (mine - right).norm() <= 1e-4 * right.norm()
            assert mine.stride() == right.stride()


def test_recordings_that_share_memory() -> None:
    """Three graphs in turn, whose intermediate values lie on each other."""
    torch.manual_seed(0)
    w = torch.randn(256, 256, device="cuda") / 16

    def first(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w) @ w

    def second(x: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu() @ w.t() @ w

    def third(x: torch.Tensor) -> torch.Tensor:
        return ((x + 1) @ w).softmax(-1)

    programs = (first, second, third)
    compiled = [braze.compile(f, mode=RECORDING) for f in programs]
    kept = []
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(512, 256, device="cuda")
            kept += [(c(x), f(x)) for c, f in zip(compiled, programs)]
    for found, wanted in kept:
        torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
