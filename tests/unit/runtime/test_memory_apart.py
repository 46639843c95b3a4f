"""Who works in memory apart, how long it is kept, and what is moved out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from braze.codegen.segments import host_sources
from braze.ir.graphs.joint_graph import PLAIN, Role
from braze.ir.kernels.scalars import apply
from braze.runtime.cuda.cublas_workspace import Scratch
from braze.runtime.cuda_graphs import warmup_pool as memory_apart
from braze.runtime.cuda_graphs.capture_analysis import RecordingFacts, recording_facts
from braze.runtime.cuda_graphs.warmup_pool import CallsApart, MemoryApart, calls_apart, move_out
from braze.schedule import CUDA, schedule
from tests.unit.codegen.programs import axes, buffer, define, load, program
from tests.unit.codegen.running import OPTIONS

ROOM = 100
FORWARD, BACKWARD = 0, 1


class Device:
    """The allocator as memory_apart.py uses it: which pools there are, how often each is used,
    and what happened, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int = 1000) -> None:
        self.uses: Counter[tuple[int, int]] = Counter()
        self.left, self.backend, self.frees = left, "native", True
        self.here: tuple[int, int] | None = None
        self.events: list[str] = []
        self.used = 0
        for name in ("allocate_to_pool", "end_allocation_to_pool", "release_pool", "free_idle"):
            monkeypatch.setattr(memory_apart, name, getattr(self, name))
        monkeypatch.setattr(memory_apart, "in_use", lambda _: self.used)
        monkeypatch.setattr(memory_apart, "take_piece", lambda size, _: self.note(f"piece {size}"))
        monkeypatch.setattr(memory_apart, "make_workspace", lambda *_: self.note("workspace"))
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, len(self.uses) + 1))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (self.left, 1 << 40))
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: self.backend)
        self.memory = MemoryApart(torch.device("cuda", 0))

    def note(self, event: str) -> None:
        self.events.append(event if self.here is None else f"{event} in {self.here[1]}")

    def allocate_to_pool(self, index: int, handle: tuple[int, int]) -> None:
        assert self.uses[handle] > 0 or handle not in self.uses, "a pool that was released"
        self.uses[handle] += 1
        self.here = handle

    def end_allocation_to_pool(self, index: int, handle: tuple[int, int]) -> None:
        assert self.here == handle
        self.here = None

    def release_pool(self, index: int, handle: tuple[int, int]) -> None:
        assert self.uses[handle] > 0
        self.uses[handle] -= 1

    def free_idle(self) -> bool:
        held = [handle[1] for handle, uses in self.uses.items() if uses]
        self.note(f"freed but for {held}")
        return self.frees

    def call(self, which: int, inside: Callable[[], object] = lambda: None) -> None:
        """A forward, or a backward. inside: happens in it."""

        def work(_: Sequence[Any]) -> list[torch.Tensor]:
            self.note("call")
            inside()
            return [torch.zeros(2)]

        room = ROOM if which == FORWARD else 0
        CallsApart(self.memory, room, Scratch.NONE, (0,)).run(work, [])

    def happened(self) -> list[str]:
        """Since the last question."""
        found, self.events = self.events, []
        return found


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def test_a_step(device: Device) -> None:
    device.call(FORWARD)
    assert device.happened() == ["freed but for []", f"piece {ROOM} in 1", "call in 1"]
    device.call(BACKWARD)
    assert device.happened() == ["call in 1", "freed but for []"]
    device.call(FORWARD)
    assert device.happened() == ["freed but for []", f"piece {ROOM} in 2", "call in 2"]


def test_the_backward_of_another_forward_leaves_it(device: Device) -> None:
    device.call(FORWARD)
    device.call(FORWARD)
    assert device.happened()[3:] == [f"piece {ROOM} in 1", "call in 1"]
    device.used = 2 << 20  # what the first one saved
    device.call(BACKWARD)
    assert device.uses[0, 1] == 1
    device.used = 512  # a result that a graph keeps
    device.call(BACKWARD)
    assert not device.uses[0, 1]
    assert device.happened()[-1] == "freed but for []"


def test_one_thread_at_a_time(device: Device) -> None:
    """A call while another is at it, which is another thread's, works among all others."""

    def other() -> None:
        here, device.here = device.here, None
        device.call(FORWARD)
        device.here = here

    device.call(FORWARD, other)
    assert device.happened() == ["freed but for []", f"piece {ROOM} in 1", "call in 1", "call"]
    device.call(FORWARD)
    assert device.happened()[-1] == "call in 1"


def test_a_backward_alone_works_among_others(device: Device) -> None:
    device.call(BACKWARD)
    assert device.happened() == ["call"]


def test_a_backward_behind_the_recording_of_another(device: Device) -> None:
    device.call(FORWARD)
    device.memory.release()
    device.happened()
    device.call(BACKWARD)
    assert device.happened() == ["call"]
    device.call(FORWARD)
    device.call(BACKWARD)
    assert not +device.uses


@pytest.mark.parametrize(("left", "backend"), [(299, "native"), (1000, "cudaMallocAsync")])
def test_only_where_there_is_plenty(left: int, backend: str, device: Device) -> None:
    device.left, device.backend = left, backend
    device.call(FORWARD)
    assert device.happened()[-1] == "call"
    assert not device.uses


def test_calls_that_will_not_be_recorded(device: Device) -> None:
    device.call(FORWARD)
    device.happened()
    CallsApart(device.memory, ROOM, Scratch.NONE, ()).end()
    assert device.happened() == ["freed but for []"]
    assert not +device.uses
    CallsApart(device.memory, ROOM, Scratch.NONE, ()).end()
    assert not device.happened(), "others keep what lies idle"


def test_a_call_that_fails_leaves_it(device: Device) -> None:
    with pytest.raises(ZeroDivisionError):
        device.call(FORWARD, lambda: 1 // 0)
    assert device.here is None
    device.memory.release()
    assert not +device.uses


def test_products_have_their_memory_elsewhere(device: Device) -> None:
    calls = CallsApart(device.memory, ROOM, Scratch.PLAIN, ())
    calls.run(lambda _: [], [])
    assert device.happened()[0] == "workspace"


def test_what_cannot_be_freed_is_said(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    device.call(FORWARD)
    device.frees = False
    with caplog.at_level("INFO", "braze.perf_hints"):
        CallsApart(device.memory, ROOM, Scratch.NONE, ()).end()
    assert "another thread records or captures" in caplog.text
    assert not +device.uses


def test_results_are_moved_with_what_shares_their_memory() -> None:
    base, other = torch.arange(12.0), torch.ones(3)
    view = base[2:8].view(2, 3).t()
    results = [view, other, base.view(torch.int32), torch.empty(0)]
    before = [result.clone() for result in results]
    strides = [result.stride() for result in results]
    move_out(results, (0, 2, 3))
    assert [result.stride() for result in results] == strides
    for found, wanted in zip(results, before, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert results[1] is other
    moved = results[0].untyped_storage().data_ptr()
    assert moved == results[2].untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
    assert results[0].storage_offset() == 2


@pytest.mark.parametrize(
    ("role", "wanted"),
    [
        (Role(kept_from=2), (2 * 4 << 22, (0,))),
        (Role(takes_inputs=True, kept_from=0), (0, (0, 2))),
        (Role(kept_from=3), None),
        (PLAIN, None),
    ],
    ids=["forward", "backward", "nothing_saved", "plain"],
)
def test_which_graphs_work_there(
    role: Role, wanted: tuple[int, tuple[int, ...]] | None, device: Device
) -> None:
    """A forward that saves something, and a backward; what they give leaves, but for inputs."""
    found = _apart(1 << 22, role, device)
    assert (found and (found.room, found.leaving)) == wanted


def test_forwards_that_need_little_or_give_much_stay_among_others(device: Device) -> None:
    assert _apart(1 << 10, Role(kept_from=2), device) is None
    assert _apart(1 << 24, Role(kept_from=2), device) is None


def _apart(size: int, role: Role, device: Device) -> CallsApart | None:
    """Of a graph that gives y = 2 x, x itself and z = y + 1, of so many numbers each."""
    x, y, z = (buffer(name, (size,)) for name in "xyz")
    (i, _) = (over := axes((size,)))[0]
    twice = define(y, over, apply("mul", load(x, i), 2.0))
    more = define(z, over, apply("add", load(y, i), 1.0))
    plan = schedule(program([x], [twice, more], [y, x, z]), OPTIONS, CUDA)
    facts = recording_facts(plan, host_sources(plan, [() for _ in plan.steps]), "cpu")
    assert isinstance(facts, RecordingFacts)
    return calls_apart(plan, facts, role, device.memory)
