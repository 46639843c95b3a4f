"""Calls that are padded: how many recordings they need, what they give, and when they are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import braze
from braze import pipeline
from braze.codegen.segments import host_sources
from braze.ir.graphs.joint_graph import PLAIN, Role
from braze.options import Options
from braze.runtime.cuda_graphs.capture_analysis import RecordingFacts, recording_facts
from braze.runtime.cuda_graphs.graphed_callable import RecordedGraph
from braze.runtime.cuda_graphs.padded_callable import PaddedGraph, padding_plan, why_not_padded
from braze.runtime.link.link_cuda import paddings
from braze.trace import Journal
from tests.unit.schedule.rows_programs import Compiled, compiled

LAYERS = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))


@pytest.fixture(autouse=True)
def _no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@dataclass
class Stand:
    """A recording that runs the graph, for the sizes that it was made with alone."""

    run: Callable[[Sequence[Any]], Sequence[Tensor]]
    shapes: list[torch.Size]
    pointers: dict[int, int]
    replays: int = 0
    is_reset: bool = False

    def agrees(self, inputs: Sequence[Tensor]) -> bool:
        return all(inputs[n].data_ptr() == pointer for n, pointer in self.pointers.items())

    def is_free(self, inputs: Sequence[Any] = ()) -> bool:
        return True

    def is_alive(self) -> bool:
        return not self.is_reset

    def replay(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        assert [x.shape for x in inputs] == self.shapes
        self.replays += 1
        return list(self.run(inputs))

    def reset(self) -> None:
        self.is_reset = True


@dataclass
class Setting:
    """A graph on the CPU whose calls are recorded by fake tensors, at padded sizes."""

    made: Compiled
    multiple: int
    recordings: list[Stand] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    addresses: set[int] = field(default_factory=set)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    fails: bool = False

    def graph(self) -> PaddedGraph:
        facts = recording_facts(self.made.plan, host_sources(self.made.plan, ()), "cpu")
        assert isinstance(facts, RecordingFacts)
        plan = padding_plan(self.made.plan)

        def record(inputs: Sequence[Any], moving: frozenset[int]) -> Any:
            fixed = {n: inputs[n].data_ptr() for n in facts.fixed_inputs if n not in moving}
            self.recordings.append(Stand(self.made.run, [x.shape for x in inputs], fixed))
            return self.recordings[-1]

        def run(inputs: Sequence[Any]) -> list[Tensor]:
            return list(self.made.run(inputs))

        moving = frozenset(plan.inputs)
        arguments: Any = (run, record, facts, self, False, self.said.append, None, moving)
        recorded = RecordedGraph(*arguments)
        recorded._refused = self.fails
        return PaddedGraph(recorded, plan, self.multiple, recorded.replays)


def _setting(monkeypatch: pytest.MonkeyPatch, multiple: int, fails: bool = False) -> Setting:
    made = compiled(monkeypatch, LAYERS, (torch.randn(5, 12),), (torch.randn(7, 12),))
    return Setting(made, multiple, fails=fails)


def _call(setting: Setting, graph: PaddedGraph, rows: int) -> None:
    inputs = list(setting.made.inputs)
    (number,) = {n for size in setting.made.plan.padding.sizes for n, _ in size.inputs}
    inputs[number] = x = torch.randn(rows, 12)
    with torch.no_grad():
        (found,) = graph(inputs)
        wanted = LAYERS(x)
    assert found.shape == wanted.shape and found.stride() == wanted.stride()
    assert found.untyped_storage().nbytes() == wanted.untyped_storage().nbytes()
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("multiple", "count"), [(64, 4), (100, 2), (7, 29)])
def test_one_recording_a_multiple(
    multiple: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = _setting(monkeypatch, multiple)
    graph = setting.graph()
    for rows in range(1, 201):
        _call(setting, graph, rows)
    assert len(setting.recordings) == count == -(-200 // multiple)
    assert sum(made.replays for made in setting.recordings) == 200 - count, "but the first of each"
    assert not setting.said


def test_sizes_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = _setting(monkeypatch, 64)
    graph = setting.graph()
    generator = torch.Generator().manual_seed(1)
    for rows in (torch.randperm(199, generator=generator) + 2).tolist():
        _call(setting, graph, rows)
    assert len(setting.recordings) == 4
    assert {made.shapes[0][0] for made in setting.recordings} <= {64, 128, 192, 256} | {16, 4}


def test_what_is_not_replayed_is_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = _setting(monkeypatch, 64, fails=True)
    sizes: list[int] = []
    run = setting.made.run

    def noted(inputs: Sequence[Any]) -> Sequence[Tensor]:
        sizes.extend({x.shape[0] for x in inputs if x.shape[1:] == (12,)} - {16})
        return run(inputs)

    setting.made.run = noted
    graph = setting.graph()
    for rows in (3, 20, 90):
        _call(setting, graph, rows)
    assert sizes == [3, 20, 90] and not setting.recordings


def test_gradients_do_not_see_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd is off while inputs are filled, and on again behind the call, or behind a fault."""
    setting = _setting(monkeypatch, 64)
    graph = setting.graph()
    inputs = list(setting.made.inputs)
    (number,) = {n for size in setting.made.plan.padding.sizes for n, _ in size.inputs}
    inputs[number] = torch.randn(9, 12, requires_grad=True)
    assert torch.is_grad_enabled()
    assert not graph(inputs)[0].requires_grad and torch.is_grad_enabled()
    inputs[number] = torch.randn(9, 12, 1)
    with pytest.raises(ValueError, match="zip"):
        graph(inputs)
    assert torch.is_grad_enabled()


# --- what is said --------------------------------------------------------------------------------


def _options(**named: Any) -> Options:
    return Options(**({"mode": "reduce-overhead", "pad_recordings_to": 64} | named))


def test_what_is_padded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = (torch.randn(5, 12),)
    plan = compiled(monkeypatch, lambda x: x - x.mean(0), inputs, dynamic=True).plan
    padded, refused = paddings(plan, _options(), PLAIN)
    assert padded == ["s1 is padded to multiples of 64"]
    assert refused == ["s0: it is folded over (sum)"]
    assert paddings(plan, _options(mode="default"), PLAIN) == ([], [])


def test_what_a_backward_waits_for_is_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _setting(monkeypatch, 64).made.plan
    for role in (Role(kept_from=1), Role(takes_inputs=True, kept_from=0)):
        padded, refused = paddings(plan, _options(), role)
        assert not padded and len(refused) == 1 and "backward" in refused[0]
    assert not why_not_padded(plan, PLAIN)


def test_explain_shows_it(monkeypatch: pytest.MonkeyPatch, journal: Journal) -> None:
    compiled(monkeypatch, torch.relu, (torch.randn(2),))  # the CPU is a device that records
    explained = braze.explain(
        lambda x: x - x.mean(0), dynamic=True, options={"pad_recordings_to": 64}
    )
    told = explained(torch.randn(5, 12))
    assert told.paddings == (
        "s1 is padded to multiples of 64",
        "not padded: s0: it is folded over (sum)",
    )
    assert told.counters["padded_sizes"] == 1 and told.counters["refused_paddings"] == 1
    assert "Recordings: s1 is padded to multiples of 64" in str(told)
    row = pipeline.device_of_type("cpu")
    assert row is not None and row.target(torch.device("cpu")).records


def test_nothing_is_proven_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    told = braze.explain(lambda x: x + 1, dynamic=True)(torch.randn(5, 12))
    assert not told.paddings and "padded_sizes" not in told.counters
