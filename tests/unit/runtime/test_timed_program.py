"""Launch programs are timed where there is a trace, and untouched where there is none."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import braze
from braze.compat.torch.profiler import PROFILER
from braze.ir.kernels.schedule import Kernel, operations_of
from braze.kernel_times import GraphTimes
from braze.runtime.launch import profiled_program
from braze.runtime.launch.cpp_compiler import find_for_kernels
from braze.runtime.launch.machine_rates import machine_rates
from braze.runtime.link import link_cpu
from braze.trace import JOURNAL
from tests.unit.runtime.equal_graphs import call_in_threads, equal_graphs


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Iterator[GraphTimes]:
    found = GraphTimes()
    monkeypatch.setattr(JOURNAL, "times", found)
    yield found


def _counts(times: GraphTimes) -> dict[str, int]:
    return {n: t.calls for graph in times.graphs().values() for n, t in graph.items()}


def _program(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *args: Any) -> Any:
    """The launch program that a call of the function runs."""
    made: list[Any] = []
    inner = link_cpu.Linked.__init__

    def noted(self: Any, *given: Any) -> None:
        inner(self, *given)
        made.append(self._call)

    monkeypatch.setattr(link_cpu.Linked, "__init__", noted)
    braze.compile(function, fullgraph=True)(*args)
    (found,) = made
    return found


def test_every_call_is_counted(times: GraphTimes) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    compiled = braze.compile(model, fullgraph=True)
    x = torch.randn(5, 8, requires_grad=True)
    for _ in range(4):
        x.grad = None
        torch.autograd.backward(compiled(x).sum())
    expected = torch.autograd.grad(model(x).sum(), x)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, *expected)
    counts = _counts(times)
    assert counts["gelu_0"] == counts[""] == 4 and counts["aten.addmm.default"] == 8
    assert len(times.graphs()) == 2
    for graph in times.graphs().values():
        found = dict(graph.items())
        whole = found.pop("")
        assert sum(each.total for each in found.values()) <= whole.total
        assert all(0 < each.least <= each.total for each in found.values())


def test_a_call_without_a_trace_is_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    assert JOURNAL.times is None
    program = _program(monkeypatch, lambda x: torch.relu(x) * 11, torch.randn(9))
    assert program.__globals__["profiler"] is PROFILER


def test_a_profiler_sees_what_it_always_does(times: GraphTimes) -> None:
    compiled = braze.compile(lambda x: torch.relu(x) * 12, fullgraph=True)
    x = torch.randn(50)
    compiled(x)
    with profile(activities=[ProfilerActivity.CPU]) as taken:
        assert torch.equal(compiled(x), torch.relu(x) * 12)
    assert "fused_relu_mul_0" in [event.name for event in taken.events()]
    assert _counts(times) == {"fused_relu_mul_0": 1, "": 1}


def test_equal_graphs_in_two_threads_keep_their_own_times(times: GraphTimes) -> None:
    assert len(call_in_threads(equal_graphs(13), 40)) == 80
    found = [dict(graph.items()) for graph in times.graphs().values()]
    assert [sorted(each) for each in found] == [
        ["", "fused_relu_sub_0"],
        ["", "fused_clamp_min_sub_0"],
    ]
    assert [each[""].calls for each in found] == [41, 41]


def test_a_timed_program_is_freed_with_its_callable(times: GraphTimes) -> None:
    held = torch.nn.Linear(3, 3)
    compiled = braze.compile(torch.nn.Sequential(held, torch.nn.ReLU()))
    compiled(torch.randn(2, 3))
    gone = weakref.ref(held)
    gc.collect()
    gc.disable()
    try:
        del held, compiled
        braze.reset()
        assert gone() is None
    finally:
        gc.enable()


def test_the_machine_is_measured_once() -> None:
    options = braze.Options()
    toolchain: Any = find_for_kernels(options)
    rates = machine_rates(toolchain, options)
    assert rates is not None and rates == machine_rates(toolchain, options)
    assert 1e8 < rates.memory < 1e13 and 1e8 < rates.products < 1e14
    assert rates.threads == torch.get_num_threads()


def test_operations_are_those_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Kernel] = []
    inner = profiled_program.profiled_kernels

    def noted(schedule: Any, sources: Any) -> Any:
        seen.extend(step for step in schedule.steps if isinstance(step, Kernel))
        return inner(schedule, sources)

    monkeypatch.setattr(link_cpu, "profiled_kernels", noted)
    q = torch.randn(2, 3, 96, 32)

    def attention(q: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.tanh(q @ q.transpose(-1, -2)), -1) @ q

    with torch.no_grad():
        braze.compile(attention, fullgraph=True)(q)
        braze.compile(lambda q: q * 14, fullgraph=True)(q)
    found = {kernel.name: operations_of(kernel) for kernel in seen}
    assert found["mul_0"] == 0
    (attended,) = [n for name, n in found.items() if "attention" in name or "softmax" in name]
    assert attended == 2 * (2 * 3 * 96 * 96) * (32 + 32), found
