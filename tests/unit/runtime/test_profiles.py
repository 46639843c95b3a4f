"""PyTorch's profiler shows compiled graphs, their kernels and the program's own regions."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import braze


def _regions(events: Any) -> dict[str, Any]:
    return {event.name: event for event in events}


def _parents(event: Any) -> list[str]:
    found = []
    while event.cpu_parent is not None:
        event = event.cpu_parent
        found.append(event.name)
    return found


def test_a_profile_shows_graphs_kernels_and_regions() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.LayerNorm(32))

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x).sum()

    compiled = braze.compile(step, fullgraph=True)
    x = torch.randn(4, 32, requires_grad=True)
    compiled(x).backward()
    expected, x.grad = x.grad, None
    with profile(activities=[ProfilerActivity.CPU]) as taken, record_function("mine"):
        compiled(x).backward()
    assert expected is not None and x.grad is not None and torch.equal(x.grad, expected)
    events = _regions(taken.events())
    graphs = [name for name in events if name.startswith("braze ")]
    forward, backward = sorted(graphs, key=lambda name: "(backward)" in name)
    assert ".step (" in forward and __file__ in forward and ", graph " in forward
    kernels = [n for n in events if "gelu" in n and not n.startswith("aten")]
    assert len(kernels) == 2, sorted(events)
    for name, graph in zip(sorted(kernels, key=lambda n: "backward" in n), (forward, backward)):
        assert graph in _parents(events[name])
    assert "mine" in _parents(events[forward])


def test_a_pure_program_is_shown_too_and_not_when_the_profiler_is_off() -> None:
    compiled = braze.compile(lambda x: torch.relu(x) * 2, fullgraph=True)
    x = torch.randn(100)
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU]) as taken:
            assert torch.equal(compiled(x), torch.relu(x) * 2)
        names = [event.name for event in taken.events()]
        assert "fused_relu_mul_0" in names
        assert torch.equal(compiled(x), torch.relu(x) * 2)


@pytest.mark.parametrize("make", (torch.autograd.profiler.profile, torch.profiler.profile))
def test_each_of_the_profilers_is_seen(make: Any) -> None:
    compiled = braze.compile(lambda x: torch.sin(x) + 5, fullgraph=True)
    x = torch.randn(10)
    compiled(x)
    with make() as taken:
        compiled(x)
    events = taken.function_events if make is torch.autograd.profiler.profile else taken.events()
    assert "fused_sin_add_0" in [event.name for event in events]


def test_two_equal_graphs_in_two_threads_keep_their_own_names() -> None:
    def relu(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) - 7

    def clamp(x: torch.Tensor) -> torch.Tensor:
        return torch.clamp_min(x, 0) - 7

    x = torch.randn(5000)
    ready = [braze.compile(f, fullgraph=True) for f in (relu, clamp)]
    for compiled in ready:
        compiled(x)

    def many(compiled: Any) -> None:
        for _ in range(50):
            assert torch.equal(compiled(x), torch.relu(x) - 7)

    with profile(activities=[ProfilerActivity.CPU]) as taken:
        threads = [threading.Thread(target=many, args=(compiled,)) for compiled in ready]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        many(ready[0])
        many(ready[1])
    names = [event.name for event in taken.events()]
    assert names.count("fused_relu_sub_0") >= 50 and names.count("fused_clamp_min_sub_0") >= 50


def test_a_profiled_program_is_freed_with_its_callable() -> None:
    held = torch.nn.Linear(3, 3)
    compiled = braze.compile(torch.nn.Sequential(held, torch.nn.ReLU()))
    with profile(activities=[ProfilerActivity.CPU]):
        compiled(torch.randn(2, 3))
    gone = weakref.ref(held)
    gc.collect()
    gc.disable()
    try:
        del compiled, held
        assert gone() is None
    finally:
        gc.enable()
