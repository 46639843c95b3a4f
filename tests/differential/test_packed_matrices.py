"""Weights of products that are packed once: kernels read the panels, and no change is missed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import braze
from braze.runtime.launch import packed_matrices
from braze.runtime.launch.packed_matrices import PackedMatrices
from braze.runtime.launch.packed_weights import PACKED
from tests.differential.packed_products import all_packed
from tests.differential.test_packed_weights import _HOLDS, CHANGES

WIDTH, INNER = 96, 130  # so wide that contents are not compared


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad(), all_packed():
        yield


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH)).eval()


def held() -> int:
    gc.collect()
    return PACKED.bytes()


def keepers() -> list[PackedMatrices]:
    found = [each for each in gc.get_objects() if type(each) is PackedMatrices]
    return [each for each in found if each.held_bytes()]


def _agrees(compiled: Any, model: nn.Module, x: torch.Tensor) -> None:
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [4, 16, 57])
def test_weights_are_packed_at_the_second_call(model: nn.Module, rows: int) -> None:
    x, before, compiled = torch.randn(rows, WIDTH), held(), braze.compile(model)
    compiled(x)
    assert held() == before
    for _ in range(3):
        _agrees(compiled, model, x)
    panels = WIDTH * 160 + INNER * 96  # columns are padded to panels
    assert held() - before == 4 * panels
    assert braze.status().packed_bytes == held()
    del compiled
    braze.reset()
    assert held() <= before


def test_explain_counts_packed_weights(model: nn.Module) -> None:
    report = braze.explain(model)(torch.randn(4, WIDTH))
    assert report.counters["products"] == report.counters["packed weights"] == 2
    assert not report.extern_ops


def test_kernels_read_the_panels(model: nn.Module) -> None:
    x, compiled = torch.randn(16, WIDTH), braze.compile(model)
    for _ in range(3):
        compiled(x)
    for keeper in keepers():
        for matrix in keeper._matrices:
            assert matrix.panels is not None
            matrix.panels.zero_()
    (last,) = [model[2].bias]
    torch.testing.assert_close(compiled(x), last.expand(16, WIDTH))


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("change", CHANGES)
def test_change_is_noticed(model: nn.Module, change: str) -> None:
    x, before, compiled = torch.randn(16, WIDTH), held(), braze.compile(model)
    for _ in range(3):
        first = compiled(x)
    assert held() > before, "nothing was packed"
    CHANGES[change](model[0].weight)
    assert not torch.allclose(model(x), first), "the change changes nothing"
    for _ in range(4):
        _agrees(compiled, model, x)


@pytest.mark.parametrize("early", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("hold", _HOLDS)
def test_writes_through_what_is_held(model: nn.Module, hold: str, early: bool) -> None:
    x, weight, compiled = torch.randn(16, WIDTH), model[0].weight, braze.compile(model)
    alias = _HOLDS[hold](weight) if early else None
    for _ in range(3):
        compiled(x)
    alias = _HOLDS[hold](weight) if alias is None else alias
    for calls in (1, 2, 3, 1):
        alias *= 1.5
        for _ in range(calls):
            _agrees(compiled, model, x)


def test_one_changed_weight_leaves_others_packed(model: nn.Module) -> None:
    x, compiled = torch.randn(16, WIDTH), braze.compile(model)
    for _ in range(3):
        compiled(x)
    whole = held()
    model[0].weight.mul_(2)
    _agrees(compiled, model, x)
    assert whole - held() == 4 * WIDTH * 160
    _agrees(compiled, model, x)
    assert held() == whole


def test_weights_that_always_change_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_matrices, "_PAUSE", 6)
    x, stays = torch.randn(16, WIDTH), torch.randn(WIDTH, WIDTH)

    def both(x: torch.Tensor, changing: torch.Tensor) -> torch.Tensor:
        return x @ changing @ stays

    compiled, before = braze.compile(both), held()
    watched, seen = packed_matrices.WATCH.watch, []
    monkeypatch.setattr(
        packed_matrices.WATCH, "watch", lambda tensors: (seen.append(1), watched(tensors))[1]
    )
    for _ in range(8):
        changing = torch.randn(WIDTH, WIDTH)
        torch.testing.assert_close(compiled(x, changing), both(x, changing), rtol=1e-4, atol=1e-3)
    looked = len(seen)
    assert looked < 8 and held() - before == stays.nbytes
    for _ in range(9):  # is looked at again, and found to stay
        torch.testing.assert_close(compiled(x, changing), both(x, changing), rtol=1e-4, atol=1e-3)
    assert held() - before == 2 * stays.nbytes


def test_slices_of_one_weight_are_packed_apart() -> None:
    weight, x, before = torch.randn(3 * WIDTH, WIDTH), torch.randn(16, WIDTH), held()

    def heads(x: torch.Tensor) -> list[torch.Tensor]:
        return [x @ part.t() for part in weight.chunk(3)]

    compiled = braze.compile(heads)
    for factor in (1, 3):
        weight.mul_(factor)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), heads(x), rtol=1e-4, atol=1e-3)
    assert held() - before == weight.nbytes


def test_a_thread_that_packs_blocks_no_other(model: nn.Module) -> None:
    x, compiled = torch.randn(16, WIDTH), braze.compile(model)
    for _ in range(3):
        compiled(x)
    (keeper,) = [each for each in keepers() if len(each._matrices) == 2]
    other = threading.Thread(target=PACKED.admits, args=(mock.Mock(), 1, 1), daemon=True)
    with keeper._lock:  # as it is while weights are packed, which then asks for room
        other.start()
        other.join(20)
    assert not other.is_alive()


@pytest.mark.parametrize("limit", [0, 1])
def test_option_limits_what_is_kept(limit: int) -> None:
    model, x, before = nn.Linear(640, 640), torch.randn(16, 640), held()  # 1.6 MiB
    compiled = braze.compile(model, options={"packed_weights": limit})
    for _ in range(4):
        _agrees(compiled, model, x)
    assert held() == before
    report = braze.explain(model, options={"packed_weights": limit})(x)
    assert ("packed weights" in report.counters) == bool(limit)


def test_calls_with_gradients_pack_nothing(model: nn.Module) -> None:
    with torch.enable_grad():
        report = braze.explain(model)(torch.randn(57, WIDTH))
    assert "packed weights" not in report.counters


def test_weights_that_the_program_writes_stay_as_they_are(model: nn.Module) -> None:
    weight, x = torch.randn(WIDTH, WIDTH), torch.randn(57, WIDTH)

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        made = x @ weight
        weight.mul_(0.5)
        return made

    report = braze.explain(step)(x, weight.clone())
    assert "packed weights" not in report.counters
    compiled, mine, theirs = braze.compile(step), weight.clone(), weight.clone()
    for _ in range(4):
        torch.testing.assert_close(compiled(x, mine), step(x, theirs), rtol=1e-4, atol=1e-4)


def test_weights_of_inference_mode_are_right() -> None:
    with torch.inference_mode():
        model, x = nn.Linear(WIDTH, INNER), torch.randn(16, WIDTH)
        compiled = braze.compile(model)
        for _ in range(4):
            _agrees(compiled, model, x)
            model.weight.mul_(1.5)


@pytest.mark.parametrize("rows", [4, 16, 112])
def test_errors_are_at_most_half_above_eagers(rows: int) -> None:
    layer, x = nn.Linear(768, 320), torch.randn(rows, 768)
    compiled = braze.compile(layer)
    exact = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double())
    for _ in range(3):
        made = compiled(x)
    ours, eager = ((y - exact).square().mean().sqrt() for y in (made, layer(x)))
    assert ours < 1.5 * eager


def test_repeated_blocks_are_packed_each() -> None:
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(12)]
    model, x, before = nn.Sequential(*layers), torch.randn(16, WIDTH), held()
    compiled = braze.compile(model)
    for _ in range(3):
        _agrees(compiled, model, x)
    assert held() - before == 12 * 4 * WIDTH * WIDTH
    layers[7][0].weight.mul_(-1)
    for _ in range(3):
        _agrees(compiled, model, x)
