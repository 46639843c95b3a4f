"""Memory apart for calls that run as compiled before they are recorded.

An optimizer makes its state behind the first backward, when most of what that step needed lies free
again. It would take its place between that, and hold it for good beside the recording's memory. So
a forward that saves, and its backward, take what they need from memory apart, in one piece of the
device's. What they give is moved out of it, and it goes back behind the last backward.

What lies free there serves nothing else, and while a call works there, nothing that lies free
elsewhere serves it. So it does only where the device has plenty, and no forward does that gives
something large: what computes the loss takes its memory next. PyTorch lets one thread at a time
work there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import torch

from braze.compat.torch.cuda import (
    allocate_to_pool,
    end_allocation_to_pool,
    free_idle,
    in_use,
    release_pool,
)
from braze.frozen import frozen
from braze.ir.graphs.joint_graph import Role
from braze.ir.kernels.loops import bytes_of
from braze.ir.kernels.schedule import Schedule
from braze.locks import make_lock
from braze.runtime.cuda.cublas_workspace import Scratch, make_workspace
from braze.runtime.cuda.memory_reservation import take_piece
from braze.runtime.cuda_graphs.backward_pool_reuse import lying_as
from braze.runtime.cuda_graphs.capture_analysis import RecordingFacts
from braze.runtime.cuda_graphs.policy import LARGE_RESULT, piece_bytes, scratch_of

_LOG = logging.getLogger("braze.perf_hints")

# What the device should have, of what is asked for.
_PLENTY = 3
# Bytes there that do not count: what a graph keeps from call to call.
_NEXT_TO_NOTHING = 1 << 20
_Call: TypeAlias = Callable[[Sequence[Any]], list[torch.Tensor]]


@final
class MemoryApart:
    """That of a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = make_lock()
        self._handle: tuple[int, int] | None = None  # PyTorch's; it is used until released
        self._is_entered = False

    def run(
        self, call: _Call, inputs: Sequence[object], room: int
    ) -> tuple[list[torch.Tensor], bool]:
        """The results of a call, and whether it worked there: a forward in so many bytes, if the
        device has plenty; with 0 a backward, if its forward did."""
        handle = self._entered(room)
        if handle is None:
            return call(inputs), False
        try:
            if room:
                take_piece(room, self.device)
            return call(inputs), True
        finally:
            end_allocation_to_pool(self.device.index, handle)
            release_pool(self.device.index, handle)
            self._is_entered = False

    def end_if_idle(self) -> None:
        """Give it back, if nobody refers to anything there."""
        with self._lock:
            handle = self._handle
        if handle is not None and in_use(handle) < _NEXT_TO_NOTHING:
            self.give_back()

    def release(self) -> bool:
        """Nobody begins anything there any more: it goes with what lies idle elsewhere, when that
        goes. Whether there was any."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            release_pool(self.device.index, handle)
        return handle is not None

    def give_back(self) -> None:
        """To the device, with all that lies idle, if there is any; what is referred to stays."""
        if self.release() and not free_idle():
            say = "memory of calls before a recording stays: another thread records or captures"
            _LOG.info(say, extra={"origin": "", "artefact": "perf_hints"})

    # --- private -----------------------------------------------------------------------------

    def _entered(self, room: int) -> tuple[int, int] | None:
        """The handle that this thread allocates from now; None: from PyTorch's own memory."""
        index = self.device.index
        with self._lock:  # a pool that was released cannot be used again
            if self._is_entered:
                return None
            if self._handle is None and room and self._has_plenty(room):
                self._handle = torch.cuda.graph_pool_handle()
                allocate_to_pool(index, self._handle)  # the use that `release` ends
                end_allocation_to_pool(index, self._handle)
            if self._handle is not None:
                allocate_to_pool(index, self._handle)
                self._is_entered = True
            return self._handle

    def _has_plenty(self, room: int) -> bool:
        """Whether the device has, when nothing is idle."""
        free_idle()
        left, _ = torch.cuda.mem_get_info(self.device)
        return left >= room * _PLENTY and torch.cuda.get_allocator_backend() == "native"


@final
@frozen
class CallsApart:
    """The calls of a graph. room: bytes that they take in one piece; 0: a backward's, which works
    where its forward does. scratch: what the library's products of the graph work in. leaving:
    numbers of the results that are moved out."""

    memory: MemoryApart
    room: int
    scratch: Scratch
    leaving: tuple[int, ...]

    def run(self, call: _Call, inputs: Sequence[object]) -> list[torch.Tensor]:
        """The results of the call."""
        if self.scratch:  # first: PyTorch keeps it for good
            make_workspace(self.scratch, self.memory.device)
        results, was_apart = self.memory.run(call, inputs, self.room)
        if was_apart:
            move_out(results, self.leaving)
            if not self.room:
                self.memory.end_if_idle()
        return results

    def end(self) -> None:
        """Calls will not be recorded."""
        self.memory.give_back()


def calls_apart(
    schedule: Schedule, facts: RecordingFacts, role: Role, memory: MemoryApart
) -> CallsApart | None:
    """Where calls of a forward that saves, or of its backward, work before they are recorded; None:
    where all do."""
    if facts.sized or schedule.sizes.numbers:
        return None
    made = {*range(facts.results)} - {*facts.input_results, *facts.constant_results}
    scratch = scratch_of(schedule)
    if role.takes_inputs:
        return CallsApart(memory, 0, scratch, tuple(sorted(made)))
    room = piece_bytes(schedule, (), role.kept_from)
    if not room or role.kept_from >= facts.results:
        return None  # it is not worth a piece, or nothing of it waits for a backward
    leaving = tuple(n for n in sorted(made) if n < role.kept_from)
    if any(bytes_of(schedule.outputs[n].buffer) >= LARGE_RESULT for n in leaving):
        return None  # the loss's backward would want its memory
    return CallsApart(memory, room, scratch, leaving)


@torch.no_grad()
def move_out(results: list[torch.Tensor], leaving: Sequence[int]) -> None:
    """Put copies in the place of these results, and of all that share memory with them."""
    sharing: dict[int, list[int]] = {}
    for number, result in enumerate(results):
        sharing.setdefault(result.untyped_storage().data_ptr(), []).append(number)
    for number in leaving:
        storage = results[number].untyped_storage()
        together = sharing.pop(storage.data_ptr(), []) if storage.data_ptr() else []
        copy = storage.clone() if together else storage
        for other in together:
            results[other] = lying_as(copy, results[other])
        del storage, copy  # each goes before the next comes
