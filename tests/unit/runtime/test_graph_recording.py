"""Which memory recordings are made in, and what a replay does; CUDA's calls are noted only."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from braze.runtime.cuda.cublas_workspace import Scratch
from braze.runtime.cuda_graphs import cuda_graph as graph_recording
from braze.runtime.cuda_graphs.backward_pool_reuse import LEAST_LENT
from braze.runtime.cuda_graphs.capture_analysis import RecordingFacts
from braze.runtime.cuda_graphs.cuda_graph import (
    LaunchLog,
    NotRecordable,
    Recording,
    RecordingPool,
    outside_of_capture,
)
from braze.runtime.cuda_graphs.kernel_params import GraphPatches

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
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
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
    monkeypatch.setattr(graph_recording, "current_stream", lambda _: id(made.stream))
    yield made
    MEMORY.clear()


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
PATCHES = GraphPatches(agrees=lambda inputs, at: True, patch=lambda at, *slots: 0)


# What the allocator has for recordings: it stays where it is when the tensors in it go.
MEMORY: list[bytearray] = []


def _recorded_value(values: torch.Tensor) -> torch.Tensor:
    MEMORY.append(bytearray(values.nbytes))
    return torch.frombuffer(MEMORY[-1], dtype=values.dtype).copy_(values)


def _call(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    first = _recorded_value(torch.arange(4.0))
    return [first, _recorded_value(torch.ones(3)), first[1:]]


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
    assert torch.equal(results[0], torch.arange(4.0)), "what nobody owns any more is kept"
    assert {r.untyped_storage().data_ptr() for r in results} <= {*pool.addresses}
    del results
    assert staying.is_free()
    staying.reset()
    assert not pool.addresses


def test_an_input_from_elsewhere_is_read_on_the_device(driver: Driver) -> None:
    """The seeds of a dropout that was not recorded are on the CPU: a kernel must not read them
    there. Here the device is the CPU, and what lies elsewhere is made of nothing."""
    where: list[torch.device] = []

    def call(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        where.append(inputs[0].device)
        return _call(inputs)

    seed = torch.empty((), dtype=torch.int64, device="meta")
    log, pool = LaunchLog(LIBRARY), RecordingPool(DEVICE)
    assert Recording(call, log, [seed], (0,), FACTS, pool, PATCHES, 99).is_alive()
    assert where == [DEVICE]


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
    empty_result = outside_of_capture(LaunchLog(library), DEVICE)
    made = empty_result((2, 3), (1, 2), dtype=torch.float64)
    assert made.stride() == (1, 2) and made.dtype == torch.float64
    assert streams == [(driver.stream, 2)] and modes == [1]
    with pytest.raises(RuntimeError):
        empty_result((-1,), (1,), dtype=torch.float32)
    assert modes == [1]


@pytest.mark.parametrize(("kept_from", "pieces"), [(0, 2), (99, 1)])
def test_the_first_in_its_memory_takes_it_in_one_piece(
    driver: Driver, kept_from: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where results stay in it, that is each; of those that share memory, one."""
    taken, real = [], torch.empty

    def noted(*size: Any, **kind: Any) -> torch.Tensor:
        taken.append(size)
        return real(*size, **kind)

    monkeypatch.setattr(torch, "empty", noted)
    pool, log = RecordingPool(DEVICE), LaunchLog(LIBRARY)
    rest = ((), FACTS, pool, PATCHES, kept_from, None, 12345)
    alive = [Recording(_call, log, [torch.zeros(2)], *rest) for _ in range(2)]
    assert len(alive) == 2 and taken.count((12345,)) == pieces


@pytest.mark.parametrize(
    ("is_lent", "idle", "emptied"),
    [(False, LEAST_LENT, True), (True, LEAST_LENT, False), (True, LEAST_LENT - 1, True)],
)
def test_what_lies_idle_is_left_to_gradients(
    driver: Driver, is_lent: bool, idle: int, emptied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, calls = RecordingPool(DEVICE), []
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: idle + 100)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 100)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    workspace = SimpleNamespace(prepare=lambda *given: given[-1]())
    monkeypatch.setattr(pool, "_workspace", workspace)
    pool.prepare(Scratch.PLAIN, is_lent)
    assert calls == (["empty"] if emptied else [])


# --- a backward in its forward's memory ----------------------------------------------------------


@dataclass
class Backward:
    """A call that notes whether each input's memory was given back before the next step."""

    gone: list[bool] = field(default_factory=list)

    def __call__(self, inputs: list[Any]) -> list[torch.Tensor]:
        first, second, part = inputs
        inputs.clear()
        owner = weakref.ref(first.untyped_storage())
        gradients = [_recorded_value(first + 1), _recorded_value(second * 2)]
        del first
        self.gone.append(owner() is None)
        del part
        self.gone.append(owner() is None)
        return [*gradients, gradients[0][1:]]


READS = dataclasses.replace(FACTS, count=3, fixed_inputs=(0, 1))


def _backward(
    pool: RecordingPool, forward: Recording, inputs: list[Any], call: Any
) -> Recording | None:
    lender = pool.lender(inputs)
    assert lender is forward
    loan = lender.lend(inputs, 1)
    if loan is None:
        return None
    log = LaunchLog(LIBRARY)
    made = Recording(call, log, inputs, (), READS, pool, PATCHES, 0, loan)
    lender.serve(made)
    return made


def test_a_backward_takes_the_memory_of_its_forward(driver: Driver) -> None:
    pool = RecordingPool(DEVICE)
    forward, call = _recorded(pool, 0), Backward()
    saved = forward.replay([torch.zeros(2)]) or []
    backward = _backward(pool, forward, saved, call)
    assert backward is not None and driver.handles[0] == driver.handles[1]
    assert call.gone == [False, True], "a view of it was left"
    assert backward.is_free(saved) and not forward.is_free() and backward.agrees(saved)
    results = backward.replay(saved) or []
    saved.clear()
    assert backward.is_free(), "nothing of it stays"
    assert forward.is_free(), "gradients are the caller's"
    assert len(results) == 3 and {r.untyped_storage().data_ptr() for r in results}.isdisjoint(
        pool.addresses
    )


def test_what_somebody_else_refers_to_is_not_lent_nor_written_over(driver: Driver) -> None:
    pool = RecordingPool(DEVICE)
    forward = _recorded(pool, 0)
    saved = forward.replay([torch.zeros(2)]) or []
    kept = [saved[1]]
    assert _backward(pool, forward, saved, Backward()) is None, "the object itself"
    kept = [saved[0].detach()]
    assert _backward(pool, forward, saved, Backward()) is None
    kept.clear()
    assert forward.lend(saved, 1 << 20) is None, "too little"
    backward = _backward(pool, forward, saved, Backward())
    assert backward is not None and backward.is_free(saved)
    kept = [saved[1][:1]]
    assert not backward.is_free(saved), "its memory"
    kept = [saved[1]]
    assert not backward.is_free(saved), "the object"
    assert _backward(pool, forward, saved, Backward()) is None, "it is lent already"
    kept.clear()
    assert backward.is_free(saved)


class Keeper(torch.autograd.Function):
    """Holds a tensor as autograd does: neither its object nor another of its memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(saved)
        return x * 2

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        return tangent, None


def test_what_autograd_keeps_for_another_backward_is_not_written_over(driver: Driver) -> None:
    pool = RecordingPool(DEVICE)
    forward = _recorded(pool, 0)
    saved = forward.replay([torch.zeros(2)]) or []
    history = Keeper.apply(torch.ones(2, requires_grad=True), saved[0])
    assert _backward(pool, forward, saved, Backward()) is None
    del history
    backward = _backward(pool, forward, saved, Backward())
    assert backward is not None and backward.is_free(saved)
    history = Keeper.apply(torch.ones(2, requires_grad=True), saved[1])
    assert not backward.is_free(saved)
    del history
    assert backward.is_free(saved)


def test_another_forwards_values_are_not_taken_for_these(driver: Driver) -> None:
    """Even where no library call reads them, and two forwards wait for their backwards."""
    pool = RecordingPool(DEVICE)
    first, second = _recorded(pool, 0), _recorded(pool, 0)
    ours, theirs = (f.replay([torch.zeros(2)]) or [] for f in (first, second))
    loan = first.lend(ours, 1)
    assert loan is not None
    facts = dataclasses.replace(READS, fixed_inputs=())
    expected: list[list[int]] = []

    def agrees(inputs: Any, at: int) -> bool:
        count = ctypes.c_long.from_address(at).value
        pairs = (ctypes.c_long * (2 * count)).from_address(at + 8)
        expected.append([*pairs])
        return all(inputs[n].data_ptr() == x for n, x in zip(pairs[::2], pairs[1::2]))

    patches = GraphPatches(agrees=agrees, patch=lambda at, *slots: 0)
    backward = Recording(Backward(), LaunchLog(LIBRARY), ours, (), facts, pool, patches, 0, loan)
    assert backward.agrees(ours) and not backward.agrees(theirs)
    assert len(expected[0]) == 6
    assert pool.lender([ours[0], theirs[1]]) is None


def test_what_is_new_each_time_is_copied_to_lent_memory(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allocated while the backward is captured, when nothing of what was lent and is not read is
    there any more; else before, in memory of everybody's."""
    ended: list[int] = []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_end", lambda _: ended.append(1))
    captures: list[tuple[int, int]] = []
    made = graph_recording._static

    def static(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        captures.append((len(driver.handles), len(ended)))
        return made(tensor, device)

    monkeypatch.setattr(graph_recording, "_static", static)
    pool, log = RecordingPool(DEVICE), LaunchLog(LIBRARY)
    forward = Recording(_call, log, [torch.zeros(2)], [0], FACTS, pool, PATCHES, 0)
    saved: list[Any] = forward.replay([torch.ones(2)]) or []
    assert captures == [(0, 0)]
    loan = forward.lend([*saved], 1)
    assert loan is None, "the program holds it"
    tangent = torch.full((3,), 5.0)

    def backward(inputs: list[Any]) -> list[torch.Tensor]:
        result = _recorded_value(inputs[3])
        inputs.clear()
        return [result]

    loan = forward.lend(saved, 1)
    assert loan is not None
    facts = dataclasses.replace(
        FACTS, count=4, fixed_inputs=(3,), whole_results=frozenset({0}), same_results={}, results=1
    )
    given = [*saved, tangent]
    del saved
    recording = Recording(backward, log, given, [3], facts, pool, PATCHES, 0, loan)
    assert captures[1:] == [(2, 1)], "inside of the second capture"
    (_, place) = recording._copied[0]

    def replay() -> None:
        recording._copies[0].copy_(place + 1)

    driver.on_replay = replay
    (result,) = recording.replay([*given[:3], torch.full((3,), 7.0)]) or []
    assert torch.equal(result, torch.full((3,), 8.0))


def test_a_backward_goes_with_its_forwards_memory(driver: Driver) -> None:
    pool = RecordingPool(DEVICE)
    forward = _recorded(pool, 0)
    saved = forward.replay([torch.zeros(2)]) or []
    backward = _backward(pool, forward, saved, Backward())
    assert backward is not None
    graph = weakref.ref(backward._graph)
    forward.reset()
    assert not forward.is_alive() and not backward.is_alive() and graph() is None
    assert not backward.agrees(saved) and backward.replay(saved) is None
    assert pool.lender(saved) is None


def test_memory_lives_as_long_as_what_lies_in_it(driver: Driver) -> None:
    pool = RecordingPool(DEVICE)
    forward = _recorded(pool, 0)
    graph = weakref.ref(forward._graph)
    saved = forward.replay([torch.zeros(2)]) or []
    forward.reset()
    assert graph() is not None
    saved.clear()
    assert graph() is None


def test_a_failed_capture_in_lent_memory_leaves_the_values(driver: Driver) -> None:
    pool = RecordingPool(DEVICE)
    forward = _recorded(pool, 0)
    saved = forward.replay([torch.zeros(2)]) or []
    with pytest.raises(NotRecordable, match="not permitted"):
        _backward(pool, forward, saved, _failing)
    assert len(saved) == 3 and forward.lend(saved, 1) is None
    saved.clear()
    assert forward.is_free() and forward.replay([torch.zeros(2)])
