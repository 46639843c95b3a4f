"""Scalars of the CPU in a graph for a device: two programs around it, and what eager would do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, optim

import braze
from braze import pipeline
from braze.codegen import triton
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.host_scalars import HostScalars
from braze.ir.graphs.print_graph import parse_graph, print_graph
from braze.ir.graphs.run_graph import compile_graph_runner, run_graph
from braze.ir.graphs.verify_graph import verify_graph
from braze.ir.kernels.schedule import ExternStep
from braze.lower import lower, split_host_scalars
from braze.options import config
from braze.rewrite import rewrite
from braze.runtime.cuda_graphs.capture_analysis import RecordingFacts, recording_facts
from braze.runtime.link.host_scalars import WithHostScalars
from braze.schedule import CUDA, schedule
from braze.trace import Journal
from tests.unit.capture.test_whole_step import Make, Training, assert_same_state

OPTIONS = config.snapshot()
CPU, OTHER = torch.device("cpu"), torch.device("cpu", 0)
# With a rate that a schedule changes, and counters that are tensors.
STEPS: dict[str, Make] = {
    "adamw": lambda p: optim.AdamW(p),
    "foreach adamw": lambda p: optim.AdamW(p, foreach=True),
    "amsgrad": lambda p: optim.Adam(p, weight_decay=0.1, amsgrad=True),
    "nadam": lambda p: optim.NAdam(p),
    "radam": lambda p: optim.RAdam(p),
    "adamax": lambda p: optim.Adamax(p),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    "asgd": lambda p: optim.ASGD(p, lr=0.1, t0=3),
}

# A run by day has two of them.
BY_DAY = ("adamw", "nadam")
EACH = [pytest.param(n, marks=() if n in BY_DAY else pytest.mark.nightly) for n in STEPS]


def _as_of_a_device(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Graphs with matrices count as those of a device that shares the CPU's memory."""
    seen: list[Graph] = []

    def devices(graph: Graph) -> frozenset[torch.device]:
        is_large = any(getattr(v.type, "shape", ())[1:] for v in graph.inputs)
        if is_large:
            seen.append(graph)
        return frozenset({CPU, OTHER} if is_large else {CPU})

    monkeypatch.setattr(pipeline, "devices_of", devices)
    return seen


@pytest.mark.parametrize("name", EACH)
def test_steps_are_eager_s(name: str, monkeypatch: pytest.MonkeyPatch, journal: Journal) -> None:
    _as_of_a_device(monkeypatch)
    eager, ours = Training(STEPS[name]), Training(STEPS[name])
    compiled = braze.compile(ours.step)
    expected, actual = eager.run(eager.step, 7), ours.run(compiled, 7)
    torch.testing.assert_close(torch.stack(actual), torch.stack(expected), rtol=1e-5, atol=1e-6)
    assert_same_state(ours, eager)
    for p, q in zip(ours.model.parameters(), eager.model.parameters(), strict=True):
        mine, theirs = ours.optimizer.state[p], eager.optimizer.state[q]
        versions = [x._version for x in mine.values() if isinstance(x, Tensor)]
        assert versions == [x._version for x in theirs.values() if isinstance(x, Tensor)]
    (*_, last) = journal.records()
    assert last.counters["host_scalars"] >= 16


@pytest.mark.parametrize("name", ["foreach adamw", "nadam"])
def test_a_device_s_graph_calls_nothing_on_the_cpu(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be recorded whole, and is given numbers."""
    seen = _as_of_a_device(monkeypatch)
    training = Training(STEPS[name])
    training.run(braze.compile(training.step), 3)
    whole = max(seen, key=lambda graph: len(graph.nodes))
    parts = split_host_scalars(_moved(whole))
    assert parts is not None
    for part in parts.graphs:
        verify_graph(part)
    moved = rewrite(parts.main, OPTIONS)
    program = lower(moved, OPTIONS, triton.supports, torch.device("cuda:0"))
    plan = schedule(program, OPTIONS, CUDA)
    calls = [step.call for step in plan.steps if isinstance(step, ExternStep)]
    outputs = [buffer for call in calls for buffer in call.outputs if buffer is not None]
    assert calls and all(buffer.device.type == "cuda" for buffer in outputs)
    facts = recording_facts(plan, triton.generate(plan, OPTIONS), "cuda")
    assert isinstance(facts, RecordingFacts) and facts.number_inputs
    counters = [target for target, _ in plan.mutations if target.device.type == "cpu"]
    assert not counters and parts.end.mutations


def _moved(graph: Graph) -> Graph:
    """The graph on a GPU, but for its scalars: what is given, and what follows from that alone."""
    scalars = {str(v) for v in [*graph.inputs, *[c.value for c in graph.constants]]}
    lines = []
    for line in print_graph(graph).splitlines():
        head, _, call = line.partition(" = aten")
        is_scalar = "[][]cpu" in head or ": float" in head
        stays = is_scalar and scalars.issuperset(re.findall(r"%\d+", call.split("#")[0]))
        if stays:
            scalars.update(re.findall(r"%\d+", head))
        lines.append(line if stays else line.replace("]cpu", "]cuda:0"))
    return parse_graph("\n".join(lines))


def _chain(count: int, last: str = "") -> str:
    """A graph in which so many scalars follow from an input, and a matrix is scaled by the last."""
    lines = [
        f"  %{n + 2}: f64[][]cpu = aten.add.Tensor(%{n + 1 if n else 1}, 1.5)" for n in range(count)
    ]
    scaled = f"  %99: f64[2, 3][3, 1]cpu = aten.mul.Tensor(%0, %{count + 1})"
    head = ["graph {", "  input %0: f64[2, 3][3, 1]cpu", "  input %1: f64[][]cpu"]
    return "\n".join([*head, *lines, scaled, last or "  output %99", "}"])


def _called(parts: HostScalars, given: list[Tensor]) -> list[Tensor]:
    runners = [compile_graph_runner(part) for part in parts.graphs]
    return WithHostScalars(parts.calls, *runners)(given)


def _given() -> list[Tensor]:
    return [torch.arange(6, dtype=torch.float64).reshape(2, 3), torch.tensor(2.0).double()]


ENDINGS = {
    "result of the device's": "  output %99",
    "scalar that is a result": "  output %99\n  output %17\n  output %3\n  output %17",
    "write of an input": "  output %99\n  write %1 <- %17 no_grad",
    "write that autograd sees": "  output %99\n  write %1 <- %17",
    "input that is a result": "  output %17 view of %1 [][] + 0\n  write %1 <- %17 no_grad",
}


@pytest.mark.parametrize("last", ENDINGS.values(), ids=ENDINGS)
def test_results_and_writes(last: str) -> None:
    graph = parse_graph(_chain(16, last))
    parts = split_host_scalars(graph)
    assert parts is not None
    for part in parts.graphs:
        verify_graph(part)
    expected, actual = _given(), _given()
    for _ in range(2):  # buffers are used again: what was returned stays
        right, found = run_graph(graph, expected), _called(parts, actual)
        assert len(found) == len(right) and all(map(torch.equal, found, right))
        assert all(map(torch.equal, actual, expected))


def test_scalars_that_views_show_are_not_of_the_buffer() -> None:
    last = "  %98: f64[2][0]cpu = aten.expand.default(%17, [2])\n  output %98"
    parts = split_host_scalars(parse_graph(_chain(16, last)))
    assert parts is not None and len(parts.begin.outputs) == 1
    runners = [compile_graph_runner(part) for part in parts.graphs]
    program, given = WithHostScalars(parts.calls, *runners), _given()
    (first,) = program(given)
    kept = first.clone()
    program([given[0], given[1] + 5])
    assert torch.equal(first, kept)


def test_a_call_within_a_call_has_memory_of_its_own() -> None:
    graph = parse_graph(_chain(16))
    parts = split_host_scalars(graph)
    assert parts is not None
    begin, main, end = [compile_graph_runner(part) for part in parts.graphs]
    inner: list[Any] = []

    def calling(inputs: Any) -> Any:
        if not inner:
            inner.append(None)
            given = _given()
            inner[0] = program([given[0], given[1] + 100])
        return main(inputs)

    program = WithHostScalars(parts.calls, begin, calling, end)
    (found,) = program(_given())
    assert torch.equal(found, run_graph(graph, _given())[0])
    assert not torch.equal(found, inner[0][0])


def test_nothing_is_written_where_the_device_s_part_raises() -> None:
    parts = split_host_scalars(parse_graph(_chain(16, ENDINGS["write of an input"])))
    assert parts is not None
    begin, _, end = [compile_graph_runner(part) for part in parts.graphs]

    def failing(inputs: Any) -> Any:
        raise ValueError("out of memory")

    given = _given()
    with pytest.raises(ValueError):
        WithHostScalars(parts.calls, begin, failing, end)(given)
    assert given[1].item() == 2.0


def test_calls_in_inference_mode_and_behind_it() -> None:
    graph = parse_graph(_chain(16))
    parts = split_host_scalars(graph)
    assert parts is not None
    runners = [compile_graph_runner(part) for part in parts.graphs]
    program = WithHostScalars(parts.calls, *runners)
    (right,) = run_graph(graph, _given())
    with torch.inference_mode():
        assert torch.equal(program(_given())[0], right)
    assert torch.equal(program(_given())[0], right)


def _with(text: str, old: str, new: str) -> Callable[[], Graph]:
    assert old in text
    return lambda: parse_graph(text.replace(old, new))


LEFT = {
    "few": lambda: parse_graph(_chain(15)),
    "of the device": _with(_chain(16), "input %1: f64[][]cpu", "input %1: f64[][]cuda:0"),
    "division that may raise": _with(
        _chain(16).replace("f64", "i64").replace("1.5", "1"), "aten.add.Tensor(%1, 1)",
        "aten.floor_divide.default(%1, %1)",
    ),
    "random": _with(_chain(16), "aten.add.Tensor(%1, 1.5)", "aten.rand_like.default(%1)"),
}  # fmt: skip


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_what_stays_in_the_graph(make: Callable[[], Graph]) -> None:
    assert split_host_scalars(make()) is None


def test_a_write_whose_reason_the_device_changes_is_not_computed_again() -> None:
    """%5 depends on %1 as it was before the graph wrote to it."""
    last = "  output %99\n  write %1 <- %100 no_grad\n  write %101 <- %17 no_grad"
    text = _chain(16, f"  %100: f64[][]cpu = aten.sum.default(%99)\n{last}")
    text = text.replace("input %1: f64[][]cpu", "input %1: f64[][]cpu\n  input %101: f64[][]cpu")
    graph = parse_graph(text)
    parts = split_host_scalars(graph)
    assert parts is not None and not parts.end.mutations
    expected, actual = [[*_given(), torch.zeros((), dtype=torch.float64)] for _ in range(2)]
    run_graph(graph, expected)
    _called(parts, actual)
    assert all(map(torch.equal, actual, expected))
