"""One call of a compiled graph, recorded as a CUDA graph and replayed with other tensors.

A replay does what the call did, on the same memory, except where one of our kernels takes a
pointer: those are patched, so inputs are read and results written where they are.

    input, read by our kernels only          patched
    input of a library call: a parameter     at its address; another one asks for another recording
    input of a library call: new each time   copied into memory of the recording before the replay
    result that our kernel writes            fresh memory each time, patched
    result of a library call                 stays in the recording's memory as long as somebody
                                             refers to it (meanwhile it is not replayed), or copied

The recording of a backward may be made in its forward's memory (lent_memory.py).
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, final

import torch

from braze.compat.torch.autograd_engine import note_write
from braze.compat.torch.cuda import (
    are_alone,
    copy_all,
    current_stream,
    end_allocation_to_pool,
    free_idle,
)
from braze.frozen import frozen
from braze.runtime.cuda.cublas_workspace import LibraryWorkspace, Scratch
from braze.runtime.cuda.launch_plan import MISALIGNED, ArgumentKind, PlanReader, ReadKernel
from braze.runtime.cuda_graphs.backward_pool_reuse import (
    LEAST_LENT,
    HeldMemory,
    Loan,
    References,
    handed_out,
)
from braze.runtime.cuda_graphs.capture_analysis import RecordingFacts
from braze.runtime.cuda_graphs.kernel_params import GraphPatches
from braze.runtime.cuda_graphs.replay_outputs import ReplayResults, plan_results
from braze.runtime.cuda_graphs.warmup_pool import MemoryApart
from braze.runtime.launch.program_text import NewTensor

_FROM_TABLE = (ArgumentKind.POINTER, ArgumentKind.VALUE)
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class NotRecordable(Exception):
    """A call cannot be recorded; the text says why."""


class CallRefused(NotRecordable):
    """A library call cannot be recorded, which is remembered: what lies around it may be."""


class NoRoom(NotRecordable):
    """Other recordings hold what may be held; one of these may go."""


@final
class RecordingPool:
    """What the recordings of a device share: the stream that they are made on, their order, and
    memory, where nothing of them stays in it from one replay to the next.

    A recording whose results stay (saved for a backward, gradients) has memory of its own:
    intermediate values of another may not lie on them. All others hold nothing after a replay but
    what is copied at once, and replays are in order: so they have one piece of memory together, as
    large as the largest needs.

    addresses: of results that stay in a recording's memory, and whose. replaying: held while one is
    replayed; recording: while one is made, since PyTorch frees no memory while another thread
    captures. unasked: bytes of recordings that nobody asked for. apart: where calls work before
    they are recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.addresses: weakref.WeakValueDictionary[int, Recording] = weakref.WeakValueDictionary()
        self.unasked: weakref.WeakKeyDictionary[Recording, int] = weakref.WeakKeyDictionary()
        self.replaying = threading.Lock()
        self.recording = threading.Lock()
        self._last: torch.cuda.Stream | None = None
        self._last_number = -1  # the driver's of that stream: to ask for it costs nothing
        self._choosing = threading.Lock()
        self._shared: tuple[int, int] | None = None
        self._sharing: weakref.WeakSet[Recording] = weakref.WeakSet()
        self._workspace = LibraryWorkspace(device)
        self.apart = MemoryApart(device)

    def prepare(self, scratch: Scratch, is_lent: bool) -> None:
        """Have matrix products that this thread records next work where all recordings' do, and
        what calls as compiled took go back to the device: recordings cannot use it.

        scratch: what these products work in. is_lent: the recording takes next to nothing for
        itself. What lies idle stays, if it is much, for its results: behind a model, before its
        backward, the loss was computed in it.
        """
        self.apart.release()
        idle = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        keeps = is_lent and idle >= LEAST_LENT

        def give_back() -> None:
            if not keeps:
                free_idle()

        def capture(
            call: Any, inputs: list[object], handle: tuple[int, int]
        ) -> torch.cuda.CUDAGraph:
            return captured(call, inputs, self, handle)[0]

        self._workspace.prepare(scratch, capture, give_back)

    def memory_for(self, recording: Recording, stays: bool) -> tuple[tuple[int, int], bool]:
        """PyTorch's handle of the memory that a recording is made in, and whether it is the first
        one there. stays: results of it do."""
        with self._choosing:
            if stays:
                return torch.cuda.graph_pool_handle(), True
            # PyTorch gives memory back with the last graph in it, and knows it no more.
            is_first = self._shared is None or not self._sharing
            if is_first:
                self._shared = torch.cuda.graph_pool_handle()
                self._sharing = weakref.WeakSet()
            self._sharing.add(recording)
            assert self._shared is not None
            return self._shared, is_first

    def lender(self, inputs: Sequence[object]) -> Recording | None:
        """The recording in whose memory inputs of a backward lie, if it is one."""
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        found = {self.addresses.get(x.untyped_storage().data_ptr()) for x in tensors} - {None}
        return found.pop() if len(found) == 1 else None

    def retire(self, handle: tuple[int, int]) -> None:
        """Take a handle out of use: a capture failed, and PyTorch may count it as a user."""
        with self._choosing:
            if handle == self._shared:
                self._shared = None

    def forget(self, recording: Recording) -> None:
        """A recording has given its memory back."""
        with self._choosing:
            self._sharing.discard(recording)
            self.unasked.pop(recording, None)

    def follow(self) -> None:
        """Have the current stream wait for the replays before, where they were on another one."""
        number = current_stream(self.device.index)
        if number == self._last_number:
            return
        stream = torch.cuda.current_stream(self.device)
        if self._last is not None:
            stream.wait_stream(self._last)
        self._last, self._last_number = stream, number


@final
@frozen
class KernelNode:
    """A kernel of a recording. node: the driver's; places: of the table that its arguments came
    from, or -1."""

    node: int
    kernel: ReadKernel
    places: tuple[int, ...]


@dataclass(slots=True)
class LaunchLog:
    """`launch` for the call that is recorded: starts the kernels and notes their nodes. outside:
    addresses of what is allocated outside of the recording's memory."""

    library: Any
    nodes: list[KernelNode] = field(default_factory=list)
    outside: set[int] = field(default_factory=set)

    def launch(self, plan: int, table: int, sizes: int, stream: int, *bound: object) -> int:
        """As the launcher's; slower."""
        reader = PlanReader(plan, table, sizes, bound)
        if reader.is_misaligned():
            return MISALIGNED
        for kernel in reader.kernels():
            code = reader.start(kernel, stream)
            if code:
                return code
            if min(kernel.grid) > 0:
                places = tuple([n if k in _FROM_TABLE else -1 for k, n in kernel.arguments])
                self.nodes.append(KernelNode(self._last_node(stream), kernel, places))
        return 0

    def relaunch(self, code: int, number: int, table: int, sizes: int, stream: int) -> None:
        """As `link_device` has it; what is not aligned is not recorded."""
        if code == MISALIGNED:
            raise NotRecordable("an input is not aligned to 16 bytes")
        raise NotRecordable(f"the driver refused a launch: error {code}")

    def _last_node(self, stream: int) -> int:
        """The node that the stream's capture ends with: the kernel that was started just now."""
        status, count = ctypes.c_int(), ctypes.c_size_t()
        nodes = ctypes.POINTER(ctypes.c_void_p)()
        code = self.library.cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(stream),
            ctypes.byref(status),
            None,
            None,
            ctypes.byref(nodes),
            ctypes.byref(count),
        )
        if code or status.value != 1 or count.value != 1:
            raise NotRecordable("the stream's capture does not say where it is")
        return nodes[0] or 0


@final
class Recording:
    """A recorded call.

    call: the launch program with the log's `launch`. moving: numbers of the inputs that are copied
    before each replay. kept_from: results from that number on may stay in the recording's memory.
    loan: what the recording is made in the memory of; none of its results stay. needs: bytes that
    it is known to take of its memory.
    Raises NotRecordable.
    """

    def __init__(
        self,
        call: Callable[[list[object]], list[torch.Tensor]],
        log: LaunchLog,
        inputs: Sequence[Any],
        moving: Collection[int],
        facts: RecordingFacts,
        pool: RecordingPool,
        patches: GraphPatches,
        kept_from: int,
        loan: Loan | None = None,
        needs: int = 0,
    ) -> None:
        self._facts, self._pool, self._patches = facts, pool, patches
        self._borrowers: weakref.WeakSet[Recording] = weakref.WeakSet()
        given = list(inputs)
        borrowed = [] if loan is None else loan.borrowed(given)
        self._borrowed = borrowed = [n for n in borrowed if n not in moving]
        fixed = sorted({*facts.fixed_inputs, *borrowed} - {*moving})
        self._expected = _array([len(fixed), *[x for n in fixed for x in (n, _at(inputs[n]))]])
        self._copied: list[tuple[int, torch.Tensor]] = []
        if loan is None:
            copies, stay = {*facts.copied(kept_from)}, facts.staying(kept_from)
            handle, is_first = pool.memory_for(self, bool(stay))
            needs = needs if is_first else 0  # else it lies where others do
            self._fix(given, moving)
        else:
            copies = {*facts.copied(sys.maxsize)} | facts.staying(sys.maxsize)
            stay, handle, needs = frozenset(), loan.handle, 0
            loan.take(given)
        reads: list[_Reads] = []

        def begun(given: list[object]) -> list[torch.Tensor]:
            if loan is not None:  # on what the program saw and nobody needs any more: its logits
                self._fix(given, moving)
            reads.append(_Reads.of(given, facts, borrowed))
            return call(given)

        try:
            self._graph: torch.cuda.CUDAGraph | None
            self._graph, results = captured(begun, given, pool, handle, needs)
        except NotRecordable:
            pool.retire(handle)
            raise
        self._program = self._patch_program(log, reads[0], results)
        held = {n: results[n] for n in sorted({*stay, *copies})}
        kept, owners = handed_out(held, reads[0].memory | log.outside, self._graph)
        # Results in fresh memory: what kernels write there, then copies.
        fresh = [*facts.fresh_results, *sorted(copies)]
        self._make = patches.maker([_new_like(n, results[n]) for n in fresh], pool.device)
        self._copies = [kept[n] for n in sorted(copies)]
        lasting = kept | {n: results[n] for n in facts.constant_results}
        starts = reads[0].starts(results, facts)
        self._results: ReplayResults | None = plan_results(results, facts, fresh, lasting, starts)
        self._held = HeldMemory(handle)
        self._lent = References() if loan is None else loan.references
        storages = [kept[n].untyped_storage() for n in sorted(stay)]
        del results, held, kept, lasting
        self._hold({storage._cdata: storage for storage in storages}, owners)

    def graph_handle(self) -> int:
        """The driver's graph."""
        assert self._graph is not None
        return int(self._graph.raw_cuda_graph())

    def is_alive(self) -> bool:
        """Whether it has its memory still."""
        return self._graph is not None

    def agrees(self, inputs: Sequence[object]) -> bool:
        """Whether library calls would read what this call is about."""
        at = ctypes.addressof(self._expected)
        return self.is_alive() and bool(self._patches.agrees(inputs, at))

    def is_free(self, inputs: Sequence[Any] = ()) -> bool:
        """Whether nobody refers to results in the recording's memory; to what a call with these
        inputs writes over, nobody but that call."""
        if not self._held.references.hold():
            return False
        if not self._borrowed or not inputs:
            return True
        return self._lent.hold() and are_alone([inputs[n] for n in self._borrowed])

    def lend(self, inputs: Sequence[object], least: int) -> Loan | None:
        """What the recording of a backward that reads these inputs is made in the memory of."""
        return self._held.lend(inputs, least)

    def serve(self, borrower: Recording) -> None:
        """That one was made in this one's memory, and goes with it."""
        self._borrowers.add(borrower)

    def replay(self, inputs: Sequence[Any]) -> list[torch.Tensor] | None:
        """The call with these inputs; None where one is not aligned."""
        facts, results, made = self._facts, self._results, self._make()
        written = made[: len(facts.fresh_results)]
        slots = [inputs[n] for n in facts.kernel_inputs]
        slots += written
        slots += [inputs[n] for n in facts.number_inputs]
        with self._pool.replaying:
            if self._graph is None or results is None:
                return None
            code = self._patches.patch(ctypes.addressof(self._program), *slots)
            if code == MISALIGNED:
                return None
            if code:
                raise NotRecordable(f"the driver refused new pointers: error {code}")
            self._pool.follow()
            for number, static in self._copied:
                # Of pageable memory on the CPU the driver has taken a copy when this returns.
                static.copy_(inputs[number], non_blocking=True)
            self._graph.replay()
            for number, static in self._copied:
                if number in facts.copied_back:
                    inputs[number].copy_(static)
            self._copy_results(made[len(written) :])
        if facts.written:
            note_write(tuple([inputs[n] for n in facts.written]))
        return results.of(made, inputs)

    def reset(self) -> None:
        """Let go of the memory, and with it of what was recorded there; what somebody still refers
        to keeps it."""
        for borrower in [*self._borrowers]:
            borrower.reset()
        with self._pool.replaying:
            for storage in self._held.references.storages:
                self._pool.addresses.pop(storage.data_ptr(), None)
            self._graph, self._held = None, HeldMemory((0, 0))
            self._results, self._lent = None, References()
            self._copies, self._copied = [], []
        self._pool.forget(self)

    # --- making ------------------------------------------------------------------------------

    def _fix(self, given: list[Any], moving: Collection[int]) -> None:
        """Give the inputs that are new each time a place."""
        for number in sorted(moving):
            given[number] = static = _static(given[number], self._pool.device)
            self._copied.append((number, static))

    def _patch_program(self, log: LaunchLog, reads: _Reads, results: Sequence[torch.Tensor]) -> Any:
        """As graph_patches.cpp reads it."""
        assert self._graph is not None
        facts = self._facts
        places = [facts.places[n] for n in facts.kernel_inputs]
        places += [facts.result_places[n] for n in facts.fresh_results]
        places += [facts.places[n] for n in facts.number_inputs]
        slot_of = {place: slot for slot, place in enumerate(places)}
        pointers = [*reads.pointers, *[_at(results[n]) for n in facts.fresh_results]]
        pointers += reads.numbers
        nodes = []
        for node in log.nodes:
            patches = [(n, slot_of[p]) for n, p in enumerate(node.places) if p in slot_of]
            if patches:
                nodes.append((node, patches))
        address = ctypes.cast(log.library.cuGraphExecKernelNodeSetParams_v2, ctypes.c_void_p).value
        assert address is not None
        head = [address, self._graph.raw_cuda_graph_exec(), len(pointers)]
        head += [len(facts.number_inputs), len(nodes), *pointers]
        for node, patches in nodes:
            kernel = node.kernel
            head += [node.node, kernel.function, *kernel.grid, kernel.threads, kernel.shared]
            head += [len(kernel.values), len(patches), *[n for pair in patches for n in pair]]
            head += kernel.values
        return _array(head)

    def _hold(
        self,
        storages: Mapping[int, torch.UntypedStorage],
        owners: Mapping[int, torch.UntypedStorage],
    ) -> None:
        """Keep the owners of what stays, and note how many references there are to it now."""
        for at, storage in storages.items():
            self._held.references.note(storage)
            if storage.data_ptr():
                self._pool.addresses[storage.data_ptr()] = self
            if at in owners:
                self._held.owners[at] = owners[at]

    def _copy_results(self, made: Sequence[torch.Tensor]) -> None:
        """Results that leave the recording's memory, before something else is replayed in it."""
        if len(made) == 1:
            made[0].copy_(self._copies[0])
        elif made:
            copy_all([*made], self._copies)


def captured(
    call: Callable[[list[object]], list[torch.Tensor]],
    given: list[object],
    pool: RecordingPool,
    handle: tuple[int, int],
    needs: int = 0,
) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]:
    """The CUDA graph of a call, made in the memory of that handle, and its results, which have no
    contents yet. given: the call's inputs, which it may take over. needs: bytes that are taken of
    the device in one piece, so that all sizes find their place there one after the other. Raises
    NotRecordable where the call does what cannot be recorded."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    stream, outer = pool.stream, torch.cuda.current_stream(pool.device)
    stream.wait_stream(outer)
    try:
        with torch.cuda.stream(stream), _no_collection():
            graph.capture_begin(pool=handle, capture_error_mode="thread_local")  # type: ignore[arg-type]
            try:
                if needs:
                    torch.empty(needs, dtype=torch.uint8, device=pool.device)
                results = call(given)
            except Exception:
                _abandon(graph, pool, handle)
                raise
            _end(graph, pool, handle)
        outer.wait_stream(stream)
        graph.instantiate()
    except Exception as error:
        raise NotRecordable(str(error).split("\n")[0]) from error
    return graph, results


def outside_of_capture(log: LaunchLog, device: torch.device) -> Callable[..., torch.Tensor]:
    """`empty_strided` that takes ordinary memory while a call is recorded, and notes it: a result
    of a kernel of ours has fresh memory at each replay, and what the recording had for it would
    lie idle."""
    library = log.library
    outer = torch.cuda.current_stream(device)

    def empty_result(*layout: Any, **kind: Any) -> torch.Tensor:
        mode = ctypes.c_int(_RELAXED)  # else the allocator's own calls would end the capture
        library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            with torch.cuda.stream(outer):
                made = torch.empty_strided(*layout, **kind)
                log.outside.add(_start(made))
                return made
        finally:
            library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    return empty_result


# --- private ---------------------------------------------------------------------------------


@contextmanager
def _no_collection() -> Iterator[None]:
    """A collection might free another recording, which the driver forbids in a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _abandon(graph: torch.cuda.CUDAGraph, pool: RecordingPool, handle: tuple[int, int]) -> None:
    """End a capture that failed, whatever PyTorch says of it."""
    with suppress(RuntimeError):
        _end(graph, pool, handle)


def _end(graph: torch.cuda.CUDAGraph, pool: RecordingPool, handle: tuple[int, int]) -> None:
    """End a capture. Where the driver has ended it already, PyTorch raises, and leaves its
    allocator and its generators in the capture: random numbers would be refused from then on, until
    another capture ends well."""
    try:
        graph.capture_end()
    except RuntimeError:
        end_allocation_to_pool(pool.device.index, handle)
        number, another = torch.zeros(1, device=pool.device), torch.cuda.CUDAGraph()
        another.capture_begin(capture_error_mode="thread_local")
        number.add_(1)
        another.capture_end()
        another.reset()
        raise


@final
@frozen
class _Reads:
    """What a recording has to know of the inputs of its call, which takes them. pointers, numbers:
    of what our kernels take; begins: where those begin that results are views of; memory: addresses
    of what is not the recording's."""

    pointers: list[int]
    numbers: list[int]
    begins: dict[int, int]
    memory: set[int]

    @classmethod
    def of(cls, given: Sequence[Any], facts: RecordingFacts, borrowed: Collection[int]) -> _Reads:
        return cls(
            [_at(given[n]) for n in facts.kernel_inputs],
            [ctypes.c_long.from_address(_at(given[n])).value for n in facts.number_inputs],
            {n: int(given[n].storage_offset()) for n in facts.input_results.values()},
            {_start(x) for n, x in enumerate(given) if n not in borrowed},
        )

    def starts(self, results: Sequence[torch.Tensor], facts: RecordingFacts) -> dict[int, int]:
        """Of results that are views of an input or of another result, where that begins."""
        found = {n: self.begins[source] for n, source in facts.input_results.items()}
        same = facts.same_results.items()
        return found | {n: int(results[base].storage_offset()) for n, base in same}


def _start(value: object) -> int:
    """Where the memory of a tensor begins."""
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


def _static(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Memory of a recording, for an input that is new each time. The seeds of a dropout are on the
    CPU where what drew them was not recorded."""
    if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape)):
        raise NotRecordable("an input is expanded")
    return tensor.new_empty_strided(tensor.shape, tensor.stride(), device=device)


def _new_like(number: int, result: torch.Tensor) -> NewTensor:
    return NewTensor(number, tuple(result.shape), result.stride(), result.dtype, True)


def _at(tensor: torch.Tensor) -> int:
    return tensor.data_ptr()


def _array(numbers: Sequence[int]) -> Any:
    return (ctypes.c_long * len(numbers))(*numbers)
