"""One call of a compiled graph, recorded as a CUDA graph and replayed with other tensors.

A replay does what the call did, on the same memory, except where one of our kernels takes a
pointer: those are patched, so inputs are read and results written where they are.

    input, read by our kernels only          patched
    input of a library call: a parameter     at its address; another one asks for another recording
    input of a library call: new each time   copied into memory of the recording before the replay
    result that our kernel writes            fresh memory each time, patched
    result of a library call                 stays in the recording's memory as long as somebody
                                             refers to it (meanwhile it is not replayed), or copied
"""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, final

import torch

from braze.compat.backward import note_write
from braze.compat.cuda import end_allocation_to_pool, storage_references
from braze.runtime.device_plan import MISALIGNED, Kind, PlanReader, ReadKernel
from braze.runtime.recording_facts import RecordingFacts

_FROM_TABLE = (Kind.POINTER, Kind.VALUE)
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class NotRecordable(Exception):
    """A call cannot be recorded; the text says why."""


class NoRoom(NotRecordable):
    """Other recordings hold what may be held; one of these may go."""


@final
class RecordingPool:
    """What the recordings of a device share: the stream that they are made on, their order, and
    memory, where nothing of them stays in it from one replay to the next.

    A recording whose results stay (saved for a backward, gradients) has memory of its own:
    intermediate values of another may not lie on them. All others hold nothing after a replay but
    what is copied at once, and replays are in order: so they have one piece of memory together, as
    large as the largest needs, but for the results that are copied.

    addresses: of results that stay in a recording's memory. replaying: held while one is replayed;
    recording: while one is made, since PyTorch frees no memory while another thread captures.
    unasked: bytes of recordings that nobody asked for.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.addresses: set[int] = set()
        self.unasked: weakref.WeakKeyDictionary[Recording, int] = weakref.WeakKeyDictionary()
        self.replaying = threading.Lock()
        self.recording = threading.Lock()
        self._last: torch.cuda.Stream | None = None
        self._choosing = threading.Lock()
        self._shared: tuple[int, int] | None = None
        self._sharing: weakref.WeakSet[Recording] = weakref.WeakSet()

    def memory_for(self, recording: Recording, stays: bool) -> tuple[int, int]:
        """PyTorch's handle of the memory that a recording is made in. stays: results of it do."""
        with self._choosing:
            if stays:
                return torch.cuda.graph_pool_handle()
            # PyTorch gives memory back with the last graph in it, and knows it no more.
            if self._shared is None or not self._sharing:
                self._shared = torch.cuda.graph_pool_handle()
                self._sharing = weakref.WeakSet()
            self._sharing.add(recording)
            return self._shared

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
        stream = torch.cuda.current_stream(self.device)
        if self._last is not None and self._last != stream:
            stream.wait_stream(self._last)
        self._last = stream


@final
@dataclass(frozen=True, slots=True)
class _Layout:
    """How a result lies in memory."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def make(self) -> torch.Tensor:
        """Fresh memory for it."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


@final
@dataclass(frozen=True, slots=True)
class KernelNode:
    """A kernel of a recording. node: the driver's; places: of the table that its arguments came
    from, or -1."""

    node: int
    kernel: ReadKernel
    places: tuple[int, ...]


@dataclass(slots=True)
class LaunchLog:
    """`launch` for the call that is recorded: starts the kernels and notes their nodes."""

    library: Any
    nodes: list[KernelNode] = field(default_factory=list)

    def launch(self, plan: int, table: int, sizes: int, stream: int, *bound: Any) -> int:
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
    Raises NotRecordable.
    """

    def __init__(
        self,
        call: Callable[[list[Any]], list[torch.Tensor]],
        log: LaunchLog,
        inputs: Sequence[Any],
        moving: Collection[int],
        facts: RecordingFacts,
        pool: RecordingPool,
        patches: Any,
        kept_from: int,
    ) -> None:
        self._facts, self._pool, self._patches = facts, pool, patches
        given = list(inputs)
        self._copied = [(number, _static(given[number])) for number in sorted(moving)]
        for number, static in self._copied:
            given[number] = static
        fixed = [n for n in facts.fixed_inputs if n not in moving]
        self._expected = _array([len(fixed), *[x for n in fixed for x in (n, _at(inputs[n]))]])
        handle = pool.memory_for(self, bool(facts.staying(kept_from)))
        try:
            self._graph, results = captured(call, given, pool, handle)
        except NotRecordable:
            pool.retire(handle)
            raise
        self._layouts = [_layout(result) for result in results]
        self._offsets = _offsets(results, given, facts)
        self._program = self._patch_program(log, given, results)
        self._copies = facts.copied(kept_from)
        held = facts.staying(kept_from) | {*self._copies} | facts.constant_results
        self._results = {n: results[n] for n in sorted(held)}
        del results, given
        self._owned = self._find_owned()

    def agrees(self, inputs: Sequence[Any]) -> bool:
        """Whether library calls would read what this call is about."""
        return bool(self._patches.agrees(inputs, ctypes.addressof(self._expected)))

    def is_free(self) -> bool:
        """Whether nobody refers to results in the recording's memory."""
        return all(storage_references(cdata) == alone for _, cdata, alone in self._owned)

    def replay(self, inputs: Sequence[Any]) -> list[torch.Tensor] | None:
        """The call with these inputs; None where one is not aligned."""
        facts, layouts = self._facts, self._layouts
        made = {n: layouts[n].make() for n in facts.fresh_results}
        slots = [inputs[n] for n in facts.kernel_inputs]
        numbers = [inputs[n] for n in facts.number_inputs]
        at = ctypes.addressof(self._program)
        code = self._patches.patch(at, *slots, *made.values(), *numbers)
        if code == MISALIGNED:
            return None
        if code:
            raise NotRecordable(f"the driver refused new pointers: error {code}")
        with self._pool.replaying:
            self._pool.follow()
            for number, static in self._copied:
                static.copy_(inputs[number])
            self._graph.replay()
            for number, static in self._copied:
                if number in facts.copied_back:
                    inputs[number].copy_(static)
            for n in self._copies:
                made[n] = layouts[n].make().copy_(self._results[n])
        if facts.written:
            note_write(tuple([inputs[n] for n in facts.written]))
        return [self._result(n, inputs, made) for n in range(len(layouts))]

    def reset(self) -> None:
        """Give the memory back to the pool."""
        for storage, _, _ in self._owned:
            self._pool.addresses.discard(storage.data_ptr())
        self._graph.reset()
        self._pool.forget(self)
        self._results, self._owned, self._copied = {}, [], []

    # --- making ------------------------------------------------------------------------------

    def _patch_program(
        self, log: LaunchLog, given: Sequence[Any], results: Sequence[torch.Tensor]
    ) -> Any:
        """As graph_patches.cpp reads it."""
        facts = self._facts
        places = [facts.places[n] for n in facts.kernel_inputs]
        places += [facts.result_places[n] for n in facts.fresh_results]
        places += [facts.places[n] for n in facts.number_inputs]
        slot_of = {place: slot for slot, place in enumerate(places)}
        pointers = [_at(given[n]) for n in facts.kernel_inputs]
        pointers += [_at(results[n]) for n in facts.fresh_results]
        pointers += [ctypes.c_long.from_address(_at(given[n])).value for n in facts.number_inputs]
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

    def _find_owned(self) -> list[tuple[Any, int, int]]:
        """(storage, its identity, references when nobody else has it) of the results that stay."""
        found = {}
        for number, result in self._results.items():
            if number not in self._copies and number not in self._facts.constant_results:
                storage = result.untyped_storage()
                found[storage._cdata] = storage
                self._pool.addresses.add(storage.data_ptr())
        return [(storage, cdata, storage_references(cdata)) for cdata, storage in found.items()]

    def _result(
        self, number: int, inputs: Sequence[Any], made: dict[int, torch.Tensor]
    ) -> torch.Tensor:
        facts, layout = self._facts, self._layouts[number]
        if number in made:
            return made[number]
        same = facts.same_results.get(number)
        if same in made:
            base = made[same]
        elif number in facts.input_results:
            base = inputs[facts.input_results[number]]
        else:
            return self._results[number].detach()
        start = base.storage_offset() + self._offsets[number]
        return base.as_strided(layout.shape, layout.stride, start)


def captured(
    call: Callable[[list[Any]], list[torch.Tensor]],
    given: Sequence[Any],
    pool: RecordingPool,
    handle: tuple[int, int],
) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]:
    """The CUDA graph of a call, made in the memory of that handle, and its results, which have no
    contents yet. Raises NotRecordable where the call does what cannot be recorded."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    stream, outer = pool.stream, torch.cuda.current_stream(pool.device)
    stream.wait_stream(outer)
    try:
        with torch.cuda.stream(stream), _no_collection():
            graph.capture_begin(pool=handle, capture_error_mode="thread_local")  # type: ignore[arg-type]
            try:
                results = call(list(given))
            except Exception:
                _abandon(graph, pool, handle)
                raise
            _end(graph, pool, handle)
        outer.wait_stream(stream)
        graph.instantiate()
    except Exception as error:
        raise NotRecordable(str(error).split("\n")[0]) from error
    return graph, results


def outside_of_capture(library: Any, device: torch.device) -> Callable[..., torch.Tensor]:
    """`empty_strided` that takes ordinary memory while a call is recorded: a result of a kernel of
    ours has fresh memory at each replay, and what the recording had for it would lie idle.
    library: the driver's."""
    outer = torch.cuda.current_stream(device)

    def empty_result(*layout: Any, **kind: Any) -> torch.Tensor:
        mode = ctypes.c_int(_RELAXED)  # else the allocator's own calls would end the capture
        library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            with torch.cuda.stream(outer):
                return torch.empty_strided(*layout, **kind)
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


def _offsets(
    results: Sequence[torch.Tensor], given: Sequence[Any], facts: RecordingFacts
) -> dict[int, int]:
    """Of results that are views of an input or of another result, where they begin in it."""
    bases = {n: given[source] for n, source in facts.input_results.items()}
    bases |= {n: results[same] for n, same in facts.same_results.items()}
    return {n: results[n].storage_offset() - base.storage_offset() for n, base in bases.items()}


def _static(tensor: torch.Tensor) -> torch.Tensor:
    """Memory of a recording, for an input that is new each time."""
    if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape)):
        raise NotRecordable("an input is expanded")
    return _layout(tensor).make()


def _layout(tensor: torch.Tensor) -> _Layout:
    return _Layout(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def _at(tensor: torch.Tensor) -> int:
    return tensor.data_ptr()


def _array(numbers: Sequence[int]) -> Any:
    return (ctypes.c_long * len(numbers))(*numbers)
