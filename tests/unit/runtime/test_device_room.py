"""The place that recordings' products work in, and room taken before a first call; no device."""

from __future__ import annotations

import threading
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from braze.runtime.cuda import cublas_workspace as library_workspace
from braze.runtime.cuda import memory_reservation as first_room
from braze.runtime.cuda.cublas_workspace import LibraryWorkspace, Scratch, make_workspace
from braze.runtime.cuda.memory_reservation import prepare_room

CPU = torch.device("cpu")


@pytest.fixture
def drops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Is added to where PyTorch's pieces are dropped."""
    found: list[str] = []
    monkeypatch.setattr(library_workspace, "drop_product_workspaces", lambda: found.append("drop"))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    return found


def _capture(captures: list[Any], call: Any, inputs: list[Any], handle: tuple[int, int]) -> Any:
    results = call(inputs)
    captures.append((handle, [tuple(result.shape) for result in results]))
    return object()


def test_what_is_recorded_works_in_one_place(drops: list[str]) -> None:
    """Whatever thread records, and whoever dropped the pieces meanwhile."""
    workspace, captures = LibraryWorkspace(CPU), []

    def prepare() -> None:
        workspace.prepare(
            Scratch.PLAIN,
            lambda *call: _capture(captures, *call),
            lambda: drops.append("back"),
        )

    prepare()
    other = threading.Thread(target=prepare)
    other.start()
    other.join()
    prepare()
    assert drops == ["back", "drop", "back"] * 3
    assert captures == [((0, 7), [(16, 16)])] * 3


def test_its_memory_is_never_without_a_graph(drops: list[str]) -> None:
    """PyTorch gives a recording's memory back with the last graph in it."""

    class Graph:
        pass

    workspace, alive = LibraryWorkspace(CPU), weakref.WeakSet()

    def capture(*_: Any) -> Any:
        before.append(len(alive))
        made = Graph()
        alive.add(made)
        return made

    before: list[int] = []
    for _ in range(3):
        workspace.prepare(Scratch.PLAIN, capture, lambda: None)
    assert before == [0, 1, 1]
    assert len(alive) == 1


def test_products_with_a_bias_have_memory_of_their_own(
    drops: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuBLASLt's: a model without biases never takes it."""
    called: list[str] = []
    monkeypatch.setattr(torch, "mm", lambda *_, out: called.append("mm"))
    monkeypatch.setattr(torch, "addmm", lambda *_, out: called.append("addmm"))
    make_workspace(Scratch.PLAIN, CPU)
    make_workspace(Scratch.BIASED, CPU)
    assert called == ["mm", "addmm"]
    workspace, captures = LibraryWorkspace(CPU), []
    called.clear()
    for used in (Scratch.NONE, Scratch.BIASED, Scratch.PLAIN):  # earlier recordings work there too
        workspace.prepare(used, lambda *call: _capture(captures, *call), lambda: None)
    # Each time once to set up, once captured.
    once, both = ["mm"] * 2, ["mm", "addmm"] * 2
    assert called == once + both + both


class Allocator:
    """What PyTorch's says of a device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reserved: int, used: int, left: int):
        self.asked: list[int] = []
        for name, value in {
            "is_current_stream_capturing": lambda: False,
            "device": lambda _: nullcontext(),
            "memory_reserved": lambda: reserved,
            "memory_allocated": lambda: used,
            "mem_get_info": lambda: (left, 1 << 40),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(first_room.torch, "empty", self.empty)

    def empty(self, size: int, **_: Any) -> None:
        self.asked.append(size)


@pytest.mark.parametrize(
    ("size", "reserved", "used", "left", "taken"),
    [
        (800, 1000, 950, 5000, True),
        (0, 1000, 1000, 5000, False),
        (800, 1000, 800, 5000, False),  # 200 are free already
        (800, 1000, 950, 700, False),  # the device has not as much
    ],
)
def test_room_is_taken_where_little_is_free(
    size: int, reserved: int, used: int, left: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = Allocator(monkeypatch, reserved, used, left)
    prepare_room(size, CPU, Scratch.NONE)
    assert allocator.asked == ([size] if taken else [])


def test_products_get_their_memory_before(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator(monkeypatch, 0, 0, 5000)
    made = []
    monkeypatch.setattr(first_room, "make_workspace", lambda *_: made.append(len(allocator.asked)))
    prepare_room(800, CPU, Scratch.PLAIN)
    assert made == [0]
    assert allocator.asked == [800]


def test_without_room_calls_take_what_they_get(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Allocator(monkeypatch, 0, 0, 1 << 40)

    def refuse(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(first_room.torch, "empty", refuse)
    with caplog.at_level("INFO", "braze.perf_hints"):
        prepare_room(64 << 20, CPU, Scratch.NONE)
    assert "no room for 64 MiB in one piece" in caplog.text
