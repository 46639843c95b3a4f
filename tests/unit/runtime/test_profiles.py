"""PyTorch's profiler shows compiled graphs, their kernels and the program's own regions."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import braze
from braze.runtime.launch.program_text import LaunchProgram
from tests.unit.runtime.equal_graphs import X, call_in_threads, equal_graphs


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
    ready = equal_graphs(7)
    with profile(activities=[ProfilerActivity.CPU]) as taken:
        found = call_in_threads(ready, 50)
        found += [compiled(X) for compiled in ready for _ in range(50)]
    assert len(found) == 200
    assert all(torch.equal(each, torch.relu(X) - 7) for each in found)
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


class _Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with record_function("attention"):
            x = torch.tanh(self.first(x)).cumsum(1)
            with record_function("inner"):
                x = torch.sigmoid(x.flip(1)).cumsum(1)
        with torch.profiler.record_function("mlp"):
            return torch.relu(self.second(x)).cumsum(1)


def _labels(events: Any) -> dict[str, set[tuple[str, ...]]]:
    """Of each kernel and operator, the program's labels around it, outermost first."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for event in events:
        around = [name for name in reversed(_parents(event)) if name.split(" (")[0] in _PROGRAM]
        if not (event.cpu_parent and event.cpu_parent.name.startswith("aten::")):
            found.setdefault(event.name.rstrip("0123456789"), set()).add(tuple(around))
    return found


_PROGRAM = {"attention", "inner", "mlp", "back", "step", "decorated"}


def test_labels_of_the_program_are_around_what_they_compute() -> None:
    model = torch.nn.Sequential(_Block(), _Block())
    compiled = braze.compile(model, fullgraph=True)
    x = torch.randn(4, 16, requires_grad=True)
    compiled(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU]) as taken:
        compiled(x).sum().backward()
    labels = _labels(taken.events())
    assert labels["tanh_"] == {("attention",)}, labels
    assert labels["fused_flip_sigmoid_"] == {("attention", "inner")}
    assert labels["relu_"] == {("mlp",)}
    assert labels["aten::addmm"] == {("attention",), ("mlp",)}
    assert {("attention (backward)",), ("mlp (backward)",)} <= labels["aten::mm"]
    names = [event.name for event in taken.events()]
    assert names.count("attention") >= 2 and names.count("mlp") >= 2


def test_a_backward_in_the_function_bears_the_labels_around_its_call() -> None:
    model = _Block()

    def step(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss = model(x).sum()
        with record_function("back"):
            loss.backward()
        return loss

    compiled = braze.compile(step, fullgraph=True)
    x = torch.randn(4, 16)
    for _ in range(2):  # the first one finds no gradients to drop
        compiled(x)
    with profile(activities=[ProfilerActivity.CPU]) as taken, record_function("step"):
        compiled(x)
    labels = _labels(taken.events())
    assert labels["aten::mm"] == {("step", "back")}
    assert labels["aten::addmm"] == {("step", "attention"), ("step", "mlp")}


def test_functions_decorated_by_a_label_bear_it() -> None:
    @record_function("decorated")
    def outside(x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(torch.exp(x), 0)

    def inside(x: torch.Tensor) -> torch.Tensor:
        @record_function("inner")
        def local(x: torch.Tensor) -> torch.Tensor:
            return torch.cumsum(torch.cos(x), 0)

        return local(outside(x)) + 1

    compiled = braze.compile(inside, fullgraph=True)
    x = torch.randn(50)
    compiled(x)
    with profile(activities=[ProfilerActivity.CPU]) as taken:
        assert torch.allclose(compiled(x), inside(x))
    compiled_labels = _labels(taken.events())
    assert ("decorated",) in compiled_labels["exp_"] and ("inner",) in compiled_labels["cos_"]


def test_a_label_that_a_graph_break_cuts_goes_on_behind_it() -> None:
    def cut(x: torch.Tensor) -> torch.Tensor:
        with record_function("attention"):
            y = torch.cumsum(torch.exp(x), 0)
            braze.graph_break()
            float(y.sum())
            y = torch.cumsum(torch.cos(y), 0)
        return torch.cumsum(torch.tanh(y), 0)

    compiled = braze.compile(cut)
    x = torch.randn(50)
    for _ in range(2):
        assert torch.allclose(compiled(x), cut(x))
    with profile(activities=[ProfilerActivity.CPU]) as taken:
        compiled(x)
    labels = _labels(taken.events())
    assert labels["exp_"] == labels["cos_"] == {("attention",)}
    assert "tanh_" in labels  # it is in the graph in which the block ends, and so around it, too
    with profile(activities=[ProfilerActivity.CPU]) as taken:  # none is left open
        torch.neg(x)
    assert not _PROGRAM & {event.name for event in taken.events()}


def test_layers_with_labels_of_their_own_keep_them() -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(24))

    def deep(x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(layers):
            with record_function(f"layer {number}"):
                x = torch.relu(layer(x)).cumsum(1)
        return x

    compiled = braze.compile(deep, fullgraph=True)
    x = torch.randn(4, 8)
    compiled(x)
    with profile(activities=[ProfilerActivity.CPU]) as taken:
        compiled(x)
    products = [event for event in taken.events() if event.name == "aten::addmm"]
    assert [_parents(event)[0] for event in products] == [f"layer {n}" for n in range(24)]


def test_labels_leave_no_trace_in_a_call_without_a_profiler(monkeypatch: Any) -> None:
    """The launch program of a labelled function is, but for comments, that of a plain one."""
    texts, define = [], LaunchProgram.define
    for labelled in (False, True):

        def f(x: torch.Tensor, labelled: bool = labelled) -> torch.Tensor:
            if not labelled:
                return torch.cumsum(torch.exp(x), 0) + 1
            with record_function("attention"):
                y = torch.cumsum(torch.exp(x), 0)
            return y + 1

        written = []

        def noted(self: LaunchProgram, names: Any, written: list[str] = written) -> Any:
            written.append(self.text)
            return define(self, names)

        with monkeypatch.context() as patch:
            patch.setattr(LaunchProgram, "define", noted)
            braze.compile(f, fullgraph=True)(torch.randn(9))
        texts.append([line for line in written[-1].splitlines() if "# labels" not in line])
        assert ("# labels" in written[-1]) is labelled
    assert texts[0] == texts[1]
