"""`pad_recordings_to`: few recordings for many sizes, with eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import braze
from braze.runtime.cuda_graphs import padded_callable as padded_graph
from braze.runtime.cuda_graphs.cuda_graph import Recording
from braze.runtime.link import link_cuda as link_device
from braze.trace import Journal
from tests.gpu.checks import NEEDS_DEVICE, RECORDING, no_fallbacks
from tests.unit.schedule.rows_programs import filled_by_nan

pytestmark = NEEDS_DEVICE

PADDED = {"mode": RECORDING, "pad_recordings_to": 64}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """The recordings that a test makes."""
    found: list[Recording] = []

    def record(*args: Any) -> Recording:
        found.append(Recording(*args))
        return found[-1]

    monkeypatch.setattr(link_device, "Recording", record)
    return found


def _layers(count: int = 4) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.LayerNorm(96)) for _ in range(count)]
    return nn.Sequential(*layers).cuda()


def _same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.stride() == wanted.stride() and found._base is None
    assert found.untyped_storage().nbytes() == wanted.untyped_storage().nbytes()
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-4)


def test_sizes_to_200_take_four_recordings(journal: Journal, made: list[Recording]) -> None:
    model = _layers()
    compiled = braze.compile(model, dynamic=True, options=PADDED)
    generator = torch.Generator().manual_seed(1)
    sizes = (torch.randperm(199, generator=generator) + 2).tolist()
    kept = []
    with no_fallbacks(journal), torch.no_grad():
        for size in sizes:
            x = torch.randn(size, 96, device="cuda")
            kept.append((compiled(x), model(x)))
            if len(kept) % 50 == 0:
                kept[-1][0].zero_(), kept[-1][1].zero_()
    for found, wanted in kept:
        _same(found, wanted)
    assert len(made) == 4


class _Words(nn.Module):
    """attends: to the words before; then words are no rows by themselves, and sentences are."""

    def __init__(self, attends: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(50, 64), nn.Embedding(200, 64)
        self.into, self.out, self.attends = nn.Linear(64, 192), nn.Linear(64, 64), attends

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        batch, length = words.shape
        x = self.words(words) + self.places(torch.arange(length, device=words.device))
        for _ in range(3):
            parts = self.into(x).view(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
            seen = parts[0] * parts[1].sigmoid() + parts[2]
            if self.attends:
                seen = F.scaled_dot_product_attention(*parts, is_causal=True)
            x = F.layer_norm(x + self.out(seen.transpose(1, 2).reshape(batch, length, 64)), (64,))
        return x


def _check_words(
    attends: bool, dtype: torch.dtype, shapes: list[tuple[int, int]]
) -> tuple[str, ...]:
    """What is said of padding, where the sizes that change in the second call do so."""
    model = _Words(attends).cuda().to(dtype)
    compiled = braze.compile(model, options=PADDED)
    with torch.no_grad():
        for shape in shapes:
            words = torch.randint(1, 50, shape, device="cuda")
            found, wanted = compiled(words), model(words)
            assert found.stride() == wanted.stride()
            torch.testing.assert_close(found.float(), wanted.float(), rtol=2e-2, atol=2e-2)
        explained = braze.explain(model, dynamic=True, options=PADDED)(words)
    return explained.paddings


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_words_are_padded_as_far_as_their_table(dtype: torch.dtype, made: list[Recording]) -> None:
    """Zeros are words; 200 places are not padded to 256, so what is longer than 192 is as it is."""
    lengths = (5, 70, 100, 150, 60, 190, 2, 64, 192, 195, 195, 195, 130)
    paddings = _check_words(False, dtype, [(3, length) for length in lengths])
    assert any("up to 200" in text for text in paddings)
    assert len(made) == 4, "64, 128, 192, and 195"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sentences_that_attend_are_padded(dtype: torch.dtype, made: list[Recording]) -> None:
    paddings = _check_words(True, dtype, [(n, 40) for n in (3, 5, 70, 20, 100, 64, 2, 128)])
    assert len(made) == 2
    if dtype == torch.float32:  # attention of half types is compiled for each length
        assert sum(text.startswith("not padded: ") for text in paddings) == 1


class _Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolutions = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)])
        self.norm, self.head = nn.BatchNorm2d(8).eval(), nn.Linear(8 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution in self.convolutions:
            x = self.norm(convolution(x)).relu() + x
        return self.head(F.max_pool2d(x, 4).flatten(1))


def _attention(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        parts = x.view(x.shape[0], 3, 4, 32, 16).unbind(1)
        seen = F.scaled_dot_product_attention(*parts)
        x = torch.stack([seen, *parts[1:]], 1).view_as(x) * 1.5
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("function", "shape"),
    [(_layers, (96,)), (_Images, (8, 16, 16)), (lambda: _attention, (3, 4, 32, 16))],
)
def test_what_lies_behind_is_not_seen(
    function: Callable[[], Any],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    made: list[Recording],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NaN there, not zero: library calls compute rows by themselves."""
    monkeypatch.setattr(padded_graph, "_filled", filled_by_nan)
    model = function()
    model = model.cuda().to(dtype) if isinstance(model, nn.Module) else model
    compiled = braze.compile(model, options=PADDED)
    with torch.no_grad():
        for size in (3, 5, 70, 20, 90, 33, 1, 63, 65):
            x = torch.randn(size, *shape, device="cuda", dtype=dtype)
            found, wanted = compiled(x), model(x)
            assert found.stride() == wanted.stride()
            torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2)
    assert len(made) == 2


def test_other_streams_and_results_that_are_kept(made: list[Recording]) -> None:
    model = _layers()
    compiled = braze.compile(model, dynamic=True, options=PADDED)
    streams = [torch.cuda.Stream() for _ in range(3)]
    kept = []
    with torch.no_grad():
        for turn in range(24):
            x = torch.randn(20 + turn, 96, device="cuda")
            stream = streams[turn % 3]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                kept.append((x, compiled(x)))
        torch.cuda.synchronize()
        for x, found in kept:
            _same(found, model(x))
    assert len(made) == 1


def _centred(x: torch.Tensor) -> torch.Tensor:
    for _ in range(8):
        x = (x - x.mean(0)).cumsum(1)
    return x


@pytest.mark.parametrize("function", [_centred, lambda x: _centred(x.t()).t() * len(x)])
def test_rows_that_meet_are_not_padded(function: Callable[..., Any], made: list[Recording]) -> None:
    explained = braze.explain(function, dynamic=True, options=PADDED)
    with torch.no_grad():
        told = explained(torch.randn(20, 12, device="cuda"))
        assert any(text.startswith("not padded: s0: ") for text in told.paddings)
        assert told.counters["refused_paddings"] >= 1
        compiled = braze.compile(function, dynamic=True, options=PADDED)
        for size in (20, 30, 20, 30, 20, 30):
            x = torch.randn(size, 12, device="cuda")
            torch.testing.assert_close(compiled(x), function(x), rtol=1e-3, atol=1e-3)


def test_gradients_are_not_padded(made: list[Recording]) -> None:
    model = _layers(1)
    compiled = braze.compile(model, dynamic=True, options=PADDED)
    for size in (20, 30, 20, 30):
        x = torch.randn(size, 96, device="cuda")
        model.zero_grad()
        compiled(x).square().sum().backward()
        found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        model(x).square().sum().backward()
        for mine, p in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(mine, p.grad, rtol=1e-2, atol=1e-2)
