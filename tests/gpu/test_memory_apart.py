"""Calls that run as compiled before they are recorded: right, and nothing of theirs stays held."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.compat.torch.cuda import (
    allocate_to_pool,
    end_allocation_to_pool,
    free_idle,
    release_pool,
)
from braze.runtime.cuda_graphs import policy as recording_choice
from braze.runtime.cuda_graphs.policy import RecordingChoice
from braze.runtime.link.link_cuda import POOLS
from braze.trace import Journal
from tests.gpu.checks import MODES, NEEDS_DEVICE, RECORDING, no_fallbacks

pytestmark = NEEDS_DEVICE
MIB = 1 << 20


class _Net(nn.Module):
    """Saves images of 4 MiB, some of which are results, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolutions = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(6))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        for convolution in self.convolutions:
            x = convolution(x).relu()
        saved = x.exp()  # its backward reads it
        return self.head(saved.mean((2, 3))), saved, saved[1:]


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_choice, "LEAST_PIECE", MIB)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    POOLS.of(torch.device("cuda", 0)).apart.give_back()


def _images(count: int = 1) -> list[torch.Tensor]:
    return [0.1 * torch.randn(16, 16, 64, 64, device="cuda") for _ in range(count)]


def _loss(out: tuple[torch.Tensor, ...]) -> torch.Tensor:
    first, saved, view = out
    return first.square().mean() + saved.mean() + 2 * view.mean()


def _begun() -> bool:
    """Whether memory apart is held."""
    return POOLS.of(torch.device("cuda", 0)).apart._handle is not None


def _steps(call: Any, model: nn.Module, images: list[torch.Tensor]) -> list[torch.Tensor]:
    found = []
    for x in images:
        model.zero_grad()
        out = call(x)
        loss = _loss(out)
        loss.backward()
        found += [o.detach().clone() for o in (*out, loss)]
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return found


def _agree(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for number, (mine, right) in enumerate(zip(found, wanted, strict=True)):
        torch.testing.assert_close(mine, right, rtol=5e-3, atol=2e-4, msg=f"number {number}")


@pytest.mark.parametrize("mode", MODES)
def test_steps(mode: str | None, journal: Journal) -> None:
    model = _Net().cuda()
    other = copy.deepcopy(model)
    images = _images(6)
    with no_fallbacks(journal):
        found = _steps(braze.compile(model, mode=mode), model, images)
    _agree(found, _steps(other, other, images))
    assert not _begun()


def test_a_result_and_what_is_saved_of_it_are_one() -> None:
    """Who writes to a result that the backward reads is told, as in eager."""
    model = _Net().cuda()
    out = braze.compile(model, mode=RECORDING)(*_images())
    assert out[1].untyped_storage().data_ptr() == out[2].untyped_storage().data_ptr()
    out[1].detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        _loss(out).backward()


def test_nothing_stays_between_what_was_needed() -> None:
    """What is made behind the first backward, as an optimizer's state is, lies by itself."""
    model = _Net().cuda()
    compiled = braze.compile(model, mode=RECORDING)
    (x,) = _images()
    _loss(copy.deepcopy(model)(x)).backward()  # what libraries work in is there
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    _loss(compiled(x)).backward()
    assert not _begun()
    state = [torch.zeros(MIB // 2, dtype=torch.uint8, device="cuda") for _ in range(8)]
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - held <= (4 + 2 + 2) * MIB, "state, gradients, an arena"
    assert len(state) == 8


@pytest.mark.parametrize("mode", MODES)
def test_forwards_without_a_backward(mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays held, whether calls come to be recorded or not."""
    if mode is None:
        monkeypatch.setattr(RecordingChoice, "why_not", lambda *_: "no use")
    model = _Net().cuda()
    other = copy.deepcopy(model)
    compiled = braze.compile(model, mode=mode)
    for x in _images(4):
        _agree([*compiled(x)], [*other(x)])
    assert not _begun()


def test_pending_backwards() -> None:
    model = _Net().cuda()
    other = copy.deepcopy(model)

    def run(call: Callable[..., Any], model: nn.Module) -> list[torch.Tensor]:
        losses = [_loss(call(x)) for x in images]
        for loss in reversed(losses):
            loss.backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    images = _images(3)
    _agree(run(braze.compile(model, mode=None), model), run(other, other))
    assert not _begun()


def test_what_is_idle_stays_while_a_call_is_there() -> None:
    """PyTorch may free nothing then; that is no error."""
    pool, found = torch.cuda.graph_pool_handle(), []
    allocate_to_pool(0, pool)
    thread = threading.Thread(target=lambda: found.append(free_idle()))
    thread.start()
    thread.join()
    end_allocation_to_pool(0, pool)
    release_pool(0, pool)
    assert len(found) == 1  # whether it did depends on the version
    assert free_idle()


def test_threads(journal: Journal) -> None:
    """First steps of two models at once, each in a thread."""
    models = [_Net().cuda() for _ in range(2)]
    others = [copy.deepcopy(model) for model in models]
    images, found = _images(4), {}

    def work(number: int) -> None:
        compiled = braze.compile(models[number], mode=RECORDING)
        found[number] = _steps(compiled, models[number], images)
        torch.cuda.synchronize()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    with no_fallbacks(journal):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number, other in enumerate(others):
        _agree(found[number], _steps(other, other, images))
