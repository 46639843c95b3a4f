"""Which memory recordings are made in, and what a replay does; CUDA's calls are noted only."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from braze.runtime import graph_recording
from braze.runtime.graph_recording import (
    LaunchLog,
    NotRecordable,
    Recording,
    RecordingPool,
    outside_of_capture,
)
from braze.runtime.recording_facts import RecordingFacts

DEVICE = torch.device("cpu")
_SET = ctypes.CFUNCTYPE(ctypes.c_int)


@dataclass
class Driver:
    """What recordings ask of CUDA."""

    handles: list[tuple[int, int]] = field(default_factory=list)
    waits: list[tuple[Any, Any]] = field(default_factory=list)
    stream: Any = None
    on_replay: Callable[[], None] = lambda: None


class Stream:
    driver: Driver

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device

    def wait_stream(self, other: Stream) -> None:
        self.driver.waits.append((self, other))


class Graph:
    driver: Driver

    def __init__(self, keep_graph: bool = False) -> None: ...

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "") -> None:
        assert not gc.isenabled(), "a collection might free another graph"
        self.driver.handles.append(pool)

    def capture_end(self) -> None: ...

    def instantiate(self) -> None: ...

    def reset(self) -> None: ...

    def raw_cuda_graph_exec(self) -> int:
        return 7

    def replay(self) -> None:
        self.driver.on_replay()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    made.stream = type("OneStream", (Stream,), {"driver": made})()
    numbers = itertools.count(1)

    @contextmanager
    def stream(_: Any) -> Iterator[None]:
        yield

    fakes = {
        "Stream": type("OneStream", (Stream,), {"driver": made}),
        "CUDAGraph": type("OneGraph", (Graph,), {"driver": made}),
        "current_stream": lambda _: made.stream,
        "graph_pool_handle": lambda: (0, next(numbers)),
        "stream": stream,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return made


# Two results of a library call, all of their memory, and a view of the first.
FACTS = RecordingFacts(
    count=1,
    sized=(),
    kernel_inputs=(),
    number_inputs=(),
    places={},
    fixed_inputs=(0,),
    copied_back=frozenset(),
    written=(),
    whole_results=frozenset({0, 1}),
    fresh_results=(),
    result_places={},
    same_results={2: 0},
    input_results={},
    constant_results=frozenset(),
    results=3,
)
LIBRARY = SimpleNamespace(cuGraphExecKernelNodeSetParams_v2=_SET(lambda: 0))
PATCHES = SimpleNamespace(patch=lambda at, *slots: 0, agrees=lambda inputs, at: True)


def _call(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    first = torch.arange(4.0)
    return [first, torch.ones(3), first[1:]]


def _failing(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    raise RuntimeError("operation not permitted when stream is capturing")


def _recorded(
    pool: RecordingPool, kept_from: int = 99, call: Any = _call, facts: RecordingFacts = FACTS
) -> Recording:
    log = LaunchLog(LIBRARY)
    return Recording(call, log, [torch.zeros(2)], (), facts, pool, PATCHES, kept_from)


def test_what_stays_and_what_is_copied() -> None:
    assert FACTS.copied(99) == [0, 1] and FACTS.staying(99) == frozenset()
    assert FACTS.copied(1) == [0] and FACTS.staying(1) == {1}
    assert FACTS.copied(0) == [] and FACTS.staying(0) == {0, 1, 2}
    ours = dataclasses.replace(FACTS, fresh_results=(0,))
    assert ours.copied(0) == [] and ours.staying(0) == {1}
    given = dataclasses.replace(FACTS, input_results={2: 0}, same_results={})
    assert given.staying(0) == {0, 1}


def test_recordings_of_which_nothing_stays_share_memory(driver: Driver) -> None:
    pool = RecordingPool(DEVICE)
    kept = [_recorded(pool), _recorded(pool), _recorded(pool)]
    assert len({*driver.handles}) == 1 and len(kept) == 3


def test_what_stays_has_memory_of_its_own(driver: Driver) -> None:
    pool = RecordingPool(DEVICE)
    kept = [_recorded(pool, n) for n in (99, 0, 1, 99, 0)]
    shared, *rest = driver.handles
    assert rest[2] == shared and len({*driver.handles}) == 4 and len(kept) == 5


@pytest.mark.parametrize("how", ["reset", "dropped"])
def test_memory_that_nobody_uses_any_more_is_not_asked_for_again(driver: Driver, how: str) -> None:
    pool = RecordingPool(DEVICE)
    first, second = _recorded(pool), _recorded(pool)
    second.reset()
    _recorded(pool).reset()
    assert len({*driver.handles}) == 1
    if how == "reset":
        first.reset()
    del first
    third = _recorded(pool)
    assert driver.handles[-1] != driver.handles[0]
    fourth = _recorded(pool)
    assert driver.handles[-1] == driver.handles[-2] and third is not fourth


def test_memory_of_a_failed_capture_is_left_alone(driver: Driver) -> None:
    pool = RecordingPool(DEVICE)
    first = _recorded(pool)
    with pytest.raises(NotRecordable, match="not permitted"):
        _recorded(pool, call=_failing)
    second = _recorded(pool)
    assert driver.handles[0] == driver.handles[1] != driver.handles[2]
    assert first.replay([torch.zeros(2)]) and second.replay([torch.zeros(2)])
    second.reset()
    _recorded(pool)
    assert driver.handles[-1] not in driver.handles[:-1]


@pytest.mark.parametrize("when", ["capture_end", "instantiate"])
def test_a_driver_that_ends_a_capture_is_no_error(
    driver: Driver, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another capture that ends well follows, which frees PyTorch's generators."""
    ended: list[Any] = []
    left = ["failing"]

    def failing(*_: object) -> None:
        if left:
            left.pop()
            raise RuntimeError("CUDA error: operation failed due to a previous error")

    monkeypatch.setattr(torch.cuda.CUDAGraph, when, failing)
    monkeypatch.setattr(graph_recording, "end_allocation_to_pool", lambda *a: ended.append(a))
    pool = RecordingPool(DEVICE)
    with pytest.raises(NotRecordable, match="previous error"):
        _recorded(pool)
    if when == "capture_end":
        assert ended == [(None, driver.handles[0])] and len(driver.handles) == 2
    else:
        assert not ended and len(driver.handles) == 1


def test_replays_are_in_order_and_one_at_a_time(driver: Driver) -> None:
    pool = RecordingPool(DEVICE)
    held = []
    driver.on_replay = lambda: held.append(pool.replaying.locked())
    first, second = _recorded(pool), _recorded(pool)
    driver.waits.clear()
    before = driver.stream
    first.replay([torch.zeros(2)])
    assert driver.waits == []
    driver.stream = type(before)()
    second.replay([torch.zeros(2)])
    assert driver.waits == [(driver.stream, before)]
    assert held == [True, True] and not pool.replaying.locked()


def test_results_of_a_replay(driver: Driver) -> None:
    """Copies are the caller's; what stays is not free while the caller has it."""
    pool = RecordingPool(DEVICE)
    copied = _recorded(pool)
    first, _, part = copied.replay([torch.zeros(2)]) or []
    assert torch.equal(first, torch.arange(4.0)) and torch.equal(part, first[1:])
    assert part.data_ptr() == first[1:].data_ptr()
    again = copied.replay([torch.zeros(2)]) or []
    assert again[0].data_ptr() != first.data_ptr() and copied.is_free()
    staying = _recorded(pool, 0)
    assert staying.is_free()
    results = staying.replay([torch.zeros(2)])
    assert results and not staying.is_free()
    assert {r.untyped_storage().data_ptr() for r in results} <= pool.addresses
    del results
    assert staying.is_free()
    staying.reset()
    assert not pool.addresses


def test_results_are_outside_of_the_recordings_memory(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allocated on the stream that is not captured, in a mode in which that is allowed."""
    modes, streams = [1], []

    def exchange(mode: Any) -> int:
        given = mode._obj
        modes[0], given.value = given.value, modes[0]
        return 0

    @contextmanager
    def stream(which: Any) -> Iterator[None]:
        streams.append((which, modes[0]))
        yield

    monkeypatch.setattr(torch.cuda, "stream", stream)
    library = SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange)
    empty_result = outside_of_capture(library, DEVICE)
    made = empty_result((2, 3), (1, 2), dtype=torch.float64)
    assert made.stride() == (1, 2) and made.dtype == torch.float64
    assert streams == [(driver.stream, 2)] and modes == [1]
    with pytest.raises(RuntimeError):
        empty_result((-1,), (1,), dtype=torch.float32)
    assert modes == [1]
