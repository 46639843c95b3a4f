"""What is remembered of library calls that a CUDA graph cannot hold; the driver is made up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from braze.ir.kernels.loops import ExternCall
from braze.ir.kernels.schedule import ExternStep
from braze.runtime.cuda_graphs import capture_trials
from braze.runtime.cuda_graphs.capture_trials import (
    CallLog,
    CaptureTrials,
    NotedCall,
    host_nodes,
    is_of_captures,
    kind_of,
    remembered_refusals,
)
from braze.runtime.cuda_graphs.cuda_graph import CallRefused, NotRecordable
from tests.unit.codegen.programs import buffer, view
from tests.unit.codegen.running import OPTIONS

DEVICE = torch.device("cpu")
ATEN = torch.ops.aten
KERNEL, COPY, SET, HOST = range(4)
ON_HOST, ON_DEVICE, ARRAY, UNIFIED = range(1, 5)


def _step(op: Any, *arguments: Any, **options: Any) -> ExternStep:
    made = buffer("made", (4,))
    return ExternStep(ExternCall(op, arguments, tuple(options.items()), (made,)))


def test_kinds_hold_dtypes_and_flags_and_no_sizes() -> None:
    small, large = view(buffer("x", (4, 4))), view(buffer("y", (8, 8)))
    half = view(buffer("h", (4, 4), torch.float16))
    kinds = [kind_of(_step(ATEN.cumsum.default, x, n)) for x, n in ((small, 0), (large, 1))]
    assert kinds[0] == kinds[1] != kind_of(_step(ATEN.cumsum.default, half, 0))
    puts = [
        kind_of(
            _step(ATEN.index_put.default, small, [view(buffer("i", (n,), torch.int64))], half, a)
        )
        for n, a in ((2, False), (3, False), (3, True))
    ]
    assert puts[0] == puts[1] != puts[2]
    lists = [kind_of(_step(ATEN.cat.default, [small] * n)) for n in (2, 300)]
    assert lists[0] == lists[1]


def test_a_refusal_outlasts_the_process(tmp_path: Path) -> None:
    options = replace(OPTIONS, cache_dir=tmp_path / "cache")
    step = _step(ATEN.cumsum.default, view(buffer("x", (4,))), 0)
    other = _step(ATEN.cumprod.default, view(buffer("x", (4,))), 0)
    first = CaptureTrials()
    assert first.refused(step, DEVICE, options) == ""
    first.note(kind_of(step), "it waits", DEVICE, options)
    for trials in (first, CaptureTrials()):
        assert trials.refused(step, DEVICE, options) == f"{kind_of(step)}: it waits"
        assert trials.refused(other, DEVICE, options) == ""


@pytest.mark.parametrize(
    ("error", "remembered"),
    [
        (RuntimeError("CUDA error: operation not permitted when stream is capturing"), True),
        (RuntimeError("operation failed due to a previous error during capture"), True),
        (torch.OutOfMemoryError("CUDA out of memory while capturing"), False),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), False),
        (ValueError("an argument"), False),
        (None, False),
    ],
)
def test_only_refused_captures_are_remembered(error: Any, remembered: bool) -> None:
    assert is_of_captures(error) is remembered


@dataclass
class Library:
    """A captured graph. nodes: (type, (kind of source, kind of target)), an address is the kind of
    memory that it is in."""

    nodes: list[tuple[int, tuple[int, int]]]

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:
        count._obj.value = len(self.nodes)
        if nodes is not None:
            for number in range(len(self.nodes)):
                nodes[number] = number + 1
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:
        kind._obj.value = self.nodes[node.value - 1][0]
        return 0

    def cuGraphMemcpyNodeGetParams(self, node: Any, copy: Any) -> int:
        source, target = self.nodes[node.value - 1][1]
        for side, kind in ((copy._obj.source, source), (copy._obj.target, target)):
            side.kind, side.device = min(kind, UNIFIED), kind
        return 0

    def cuPointerGetAttribute(self, found: Any, attribute: int, address: Any) -> int:
        found._obj.value = ON_DEVICE if address.value == UNIFIED else ON_HOST
        return 0

    def cuStreamGetCaptureInfo_v2(
        self, stream: Any, status: Any, number: Any, graph: Any, *_: Any
    ) -> int:
        graph._obj.value = 1
        return 0


@pytest.mark.parametrize(
    ("node", "is_refused"),
    [
        ((KERNEL, (0, 0)), False),
        ((SET, (0, 0)), False),
        ((HOST, (0, 0)), True),
        ((COPY, (ON_DEVICE, ON_DEVICE)), False),
        ((COPY, (ARRAY, ON_DEVICE)), False),
        ((COPY, (ON_HOST, ON_DEVICE)), True),
        ((COPY, (ON_DEVICE, ON_HOST)), True),
        ((COPY, (UNIFIED, UNIFIED)), False),
        ((COPY, (UNIFIED, UNIFIED + 1)), True),
    ],
)
def test_nodes_that_reach_to_the_host(node: Any, is_refused: bool) -> None:
    library = Library([(KERNEL, (0, 0)), node])
    assert [number for number, _ in host_nodes(library, 1)] == [1] * is_refused


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Iterator[CaptureTrials]:
    made = CaptureTrials()
    monkeypatch.setattr(capture_trials, "TRIALS", made)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    yield made


def test_the_call_of_a_node_is_found(trials: CaptureTrials, tmp_path: Path) -> None:
    """By the sizes of the graph around calls."""
    options = replace(OPTIONS, cache_dir=tmp_path / "cache")
    library = Library([(KERNEL, (0, 0))])
    log = CallLog(library, DEVICE)

    def copies() -> None:
        library.nodes += [(COPY, (ON_HOST, ON_DEVICE)), (KERNEL, (0, 0))]

    def computes() -> None:
        library.nodes.append((KERNEL, (0, 0)))

    for kind, function in (("first", computes), ("second", copies), ("third", computes)):
        log._watched(kind, function)()
    assert log.calls == [
        NotedCall("first", 1, 2),
        NotedCall("second", 2, 4),
        NotedCall("third", 4, 5),
    ]
    with (
        pytest.raises(CallRefused, match="second: it copies"),
        remembered_refusals(log, DEVICE, options),
    ):
        log.check_host(1)
    assert [kind for kind, _ in trials._refused] == ["second"]


def test_a_failure_outside_of_calls_is_not_remembered(trials: CaptureTrials) -> None:
    log = CallLog(Library([]), DEVICE)
    with pytest.raises(NotRecordable) as raised, remembered_refusals(log, DEVICE, OPTIONS):
        raise NotRecordable("an input is not aligned") from RuntimeError("capturing")
    assert not isinstance(raised.value, CallRefused) and not trials._refused
