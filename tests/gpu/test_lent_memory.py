"""Backwards that are recorded in their forward's memory: never a wrong gradient."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.runtime.cuda_graphs import backward_pool_reuse as lent_memory
from braze.runtime.cuda_graphs import cuda_graph as graph_recording
from braze.runtime.cuda_graphs.cuda_graph import Recording
from braze.trace import Journal
from tests.gpu.checks import NEEDS_DEVICE, RECORDING, no_fallbacks

pytestmark = NEEDS_DEVICE


class _Net(nn.Module):
    """Library calls and kernels whose results are saved."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = (3, 16, 32, 32)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in widths[1:])
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution, norm in zip(self.convolutions, self.norms):
            x = norm(convolution(x)).relu()
        return self.head(x.mean((2, 3)))


@pytest.fixture(autouse=True)
def lent(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Any size is lent; says of each recording whether it was made in another's memory."""
    monkeypatch.setattr(lent_memory, "LEAST_LENT", 0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # noise hides what is wrong
    made: list[bool] = []
    init = Recording.__init__

    def noted(self: Recording, *args: Any) -> None:
        init(self, *args)
        made.append(args[-2] is not None)

    monkeypatch.setattr(graph_recording.Recording, "__init__", noted)
    return made


def _images(count: int, batch: int = 4) -> list[torch.Tensor]:
    return [torch.randn(batch, 3, 16, 16, device="cuda") for _ in range(count)]


def _both(
    run: Callable[[Any, nn.Module], list[torch.Tensor]], **options: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What `run(call, model)` gives for the compiled model and for an eager copy."""
    model = _Net().cuda()
    other = copy.deepcopy(model)
    compiled = braze.compile(model, mode=RECORDING, **options)
    return run(compiled, model), run(other, other)


def _agree(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for number, (mine, right) in enumerate(zip(found, wanted, strict=True)):
        torch.testing.assert_close(mine, right, rtol=5e-3, atol=2e-4, msg=f"number {number}")


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_steps(lent: list[bool], journal: Journal) -> None:
    images = _images(8)

    def run(call: Any, model: nn.Module) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        found = []
        for x in images:
            optimizer.zero_grad()
            loss = call(x).square().mean()
            loss.backward()
            found += [loss.detach(), *_gradients(model)]
            optimizer.step()
        return found

    with no_fallbacks(journal):
        _agree(*_both(run))
    assert True in lent


def test_gradients_are_held_while_the_forward_comes_again(lent: list[bool]) -> None:
    """They are the caller's, and are added up."""
    images = _images(10)

    def run(call: Any, model: nn.Module) -> list[torch.Tensor]:
        kept = []
        for number, x in enumerate(images):
            call(x).square().mean().backward()
            kept += [p.grad for p in model.parameters() if p.grad is not None]
            if number % 2:
                model.zero_grad()
        return kept

    found, wanted = _both(run)
    _agree(found, wanted)
    assert True in lent


def test_pending_backwards(lent: list[bool]) -> None:
    images = _images(12)

    def run(call: Any, model: nn.Module) -> list[torch.Tensor]:
        for x in images[:3]:
            call(x).square().mean().backward()
        model.zero_grad()
        found = []
        for start in range(0, 12, 3):
            losses = [call(x).square().mean() for x in images[start : start + 3]]
            for loss in reversed(losses):
                loss.backward()
            found += _gradients(model)
        return found

    _agree(*_both(run))
    assert True in lent


def test_a_backward_that_is_run_again(lent: list[bool]) -> None:
    """retain_graph=True in every third step, on recordings that were made without and with."""
    images = _images(12)

    def run(call: Any, model: nn.Module) -> list[torch.Tensor]:
        found = []
        for number, x in enumerate(images):
            model.zero_grad()
            loss = call(x).square().mean()
            if number % 3 == 2:
                for _ in range(3):
                    loss.backward(retain_graph=True)
            else:
                loss.backward()
            found += _gradients(model)
        return found

    _agree(*_both(run))
    assert True in lent


def test_saved_values_that_the_program_got_at(lent: list[bool]) -> None:
    """They are what they were, whatever is replayed since."""
    compiled = braze.compile(_Net().cuda(), mode=RECORDING)
    for x in _images(4):
        compiled(x).square().mean().backward()
    assert True in lent
    (x,) = _images(1)
    out = compiled(x)
    saved = [s for s in out.grad_fn.saved_tensors if isinstance(s, torch.Tensor)]
    before = [s.clone() for s in saved]
    out.square().mean().backward()
    for y in _images(6):
        compiled(y).square().mean().backward()
    del compiled, out
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    for now, then in zip(saved, before):
        assert torch.equal(now, then)


def test_gradients_of_some_results_and_of_the_input(lent: list[bool]) -> None:
    """Other tangents are other backwards, which have the same values to read."""
    images = _images(12)

    def run(call: Any, model: nn.Module) -> list[torch.Tensor]:
        found = []
        for number, x in enumerate(images):
            model.zero_grad()
            x = x.clone().requires_grad_(number % 4 == 3)
            first, second = call(x)
            (first.square().mean() if number % 2 else (first * second).mean()).backward()
            found += _gradients(model)
            found += [x.grad] if x.grad is not None else []
        return found

    class Two(_Net):
        def forward(self, x: torch.Tensor) -> Any:
            made = super().forward(x)
            return made, made.softmax(-1)

    model = Two().cuda()
    other = copy.deepcopy(model)
    _agree(run(braze.compile(model, mode=RECORDING), model), run(other, other))


def test_sizes_parameters_and_streams_that_change() -> None:
    side = torch.cuda.Stream()

    def run(call: Any, model: nn.Module) -> list[torch.Tensor]:
        found = []
        for number in range(30):
            torch.manual_seed(number)
            x = torch.randn(2 + number % 5, 3, 16, 16, device="cuda")
            if number % 7 == 6:
                for p in model.parameters():
                    p.data = p.data.clone()
            model.zero_grad()
            stream = side if number % 4 == 3 else torch.cuda.current_stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                call(x).square().mean().backward()
            torch.cuda.current_stream().wait_stream(stream)
            found += _gradients(model)
        return found

    _agree(*_both(run, dynamic=True))


def test_what_is_lent_is_in_memory_once() -> None:
    """Recorded steps hold little more than what eager has at its peak."""
    peaks = []
    for mode in (None, RECORDING):
        model = _Net().cuda()
        call = model if mode is None else braze.compile(model, mode=mode)
        (x,) = _images(1, 256)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        for _ in range(6):
            model.zero_grad()
            call(x).square().mean().backward()
        torch.cuda.synchronize()
        peaks.append(
            (
                torch.cuda.max_memory_allocated() - before[0],
                torch.cuda.max_memory_reserved() - before[1],
            )
        )
        del model, call
    (eager, _), (ours, _) = peaks
    assert ours <= 1.05 * eager, peaks
