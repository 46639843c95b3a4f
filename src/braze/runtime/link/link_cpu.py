"""A schedule and its sources to something that can be called."""

from __future__ import annotations

import functools
import weakref
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, final

import torch

from braze.compat.torch.grad_mode import is_autocast_on, set_grad_enabled, without_autocast
from braze.compat.torch.registered_ops import convolution, pack_weights
from braze.ir.kernels.kernel import KernelSources, SourceUnit
from braze.ir.kernels.loops import BufferView, ExternCall
from braze.ir.kernels.schedule import ALIGNMENT, Schedule
from braze.kernel_times import KernelTimes
from braze.locks import call_in_children
from braze.options import Options
from braze.runtime.launch.build_cache import kernels_of
from braze.runtime.launch.convolutions.kernel import ConvolutionKernel, kernel_of
from braze.runtime.launch.cpp_compiler import NoCompiler, find_for_kernels
from braze.runtime.launch.dynamic_arena import SizedArena
from braze.runtime.launch.frame_layout import FrameLayout, lay_out_frame
from braze.runtime.launch.frozen_weights import convolution_of, matrices_of
from braze.runtime.launch.kernel_launcher import Run, load_launcher, raise_fault
from braze.runtime.launch.launch_program import write_program
from braze.runtime.launch.machine_rates import machine_rates
from braze.runtime.launch.profiled_program import (
    ProfiledKernel,
    ProfiledProgram,
    profiled_kernels,
)
from braze.runtime.launch.program_text import LaunchProgram, NamedOperator
from braze.runtime.launch.timed_program import TimedProgram

# A `GraphCallable` whose results are a list.
CompiledGraph: TypeAlias = Callable[[Sequence[Any]], list[torch.Tensor]]


def link(
    schedule: Schedule,
    sources: KernelSources,
    options: Options,
    takes_inputs: bool = False,
    packing: SourceUnit | None = None,
    convolving: SourceUnit | None = None,
) -> CompiledGraph | NoCompiler:
    """Build the units, load them and return the launch program; its text is `call.text`.

    takes_inputs: a call empties the list that it is given, and lets each input go when it is
    done with. packing: source that packs matrices as the kernels do, where they are packed once.
    convolving: source of convolutions (`codegen/cpp/convolution.cpp`).

    A call takes the graph's inputs, typed as the schedule's, and returns its outputs: fresh
    tensors, or views as the schedule's outputs say. It may be made from several threads.
    """
    constants = dict(schedule.constants)
    own: list[ConvolutionKernel] = []

    def convolve(call: ExternCall) -> Callable[..., object]:
        kernel = kernel_of(call, convolving, _threads_now, options) if convolving else None
        own.extend([kernel] if kernel is not None else [])
        return convolution_of(call, constants, options, kernel)

    stateful: dict[torch._ops.OpOverload, Callable[[ExternCall], Callable[..., Any]]] = {
        convolution: convolve
    }
    if packing is not None:
        stateful[pack_weights] = lambda call: matrices_of(call, constants, options, packing)
    program = write_program(schedule, sources, takes_inputs, stateful=stateful)
    names: dict[str, Any] = dict(program.names)
    if sources.segments:
        toolchain = find_for_kernels(options)
        if isinstance(toolchain, NoCompiler):
            return toolchain
        if sources.times is not None:
            sources.times.rates = functools.partial(machine_rates, toolchain, options)
        library = kernels_of(sources.units, toolchain, options)
        run: Run = load_launcher(toolchain, options)
        names["run"] = run
        names["raise_fault"] = raise_fault
        names["keep"] = library
        for segment in sources.segments:
            names[segment.entry] = library.address(segment.entry)
    made: Any = callable_of(
        program,
        names,
        frames_of(schedule, sources, program.views),
        sources.title,
        profiled_kernels(schedule, sources),
        sources.times,
    )
    made.own_convolutions = len(own)
    return made  # type: ignore[no-any-return]


def callable_of(
    program: LaunchProgram,
    names: dict[str, object],
    frames: Frames,
    title: str = "",
    kernels: Sequence[Sequence[ProfiledKernel]] = (),
    times: KernelTimes | None = None,
) -> CompiledGraph:
    """The compiled graph; a call of a pure program goes straight there. title: what a profiler
    shows it as; kernels: those of each segment; times: what calls add to, where they are timed."""
    made = Linked(program, names, frames, title, kernels, times)
    return made.straight() if program.is_pure else made


def _one() -> int:
    return 1


def _threads_now() -> int:
    return PROGRAMS.threads()


@final
class _Programs:
    """The launch programs of the process.

    threads: how many threads a kernel may use. In a child of a process that had programs it is one:
    OpenMP's others are not there, and would be waited for.
    """

    def __init__(self) -> None:
        self.threads: Callable[[], int] = torch.get_num_threads
        self._calls: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, call: object) -> None:
        """Take in a launch program."""
        self._calls.add(call)

    def stay_in_this_thread(self) -> None:
        """In a child."""
        calls = list(self._calls)
        if calls:
            self.threads = _one
        for call in calls:
            call.__globals__["threads"] = _one


PROGRAMS = _Programs()
call_in_children(PROGRAMS.stay_in_this_thread)


class _LaunchCall(Protocol):
    """`call` of a launch program. text: the program's source, for readers."""

    text: str

    def __call__(self, inputs: Sequence[Any], /) -> list[torch.Tensor]: ...


@final
class Linked:
    """The compiled graph: calling it runs `call` of the launch program without gradients, and
    without autocast. names: what its text refers to beside what every program does."""

    __slots__ = ("_call", "_packed", "own_convolutions")

    def __init__(
        self,
        program: LaunchProgram,
        names: dict[str, Any],
        frames: Frames,
        title: str,
        kernels: Sequence[Sequence[ProfiledKernel]],
        times: KernelTimes | None,
    ) -> None:
        # Nothing but a reader asks for it, and it is as large as the code.
        self._packed = zlib.compress(program.text.encode(), 1)
        shown = title or "braze graph"
        names |= {
            "profiled": ProfiledProgram(shown, self._packed, kernels, program.labels),
            "take_frame": frames.take,
            "give_frame": frames.give,
            "threads": PROGRAMS.threads,
            "flatten": _flatten,
            "restride": _restride,
            "reinterpret": _reinterpret,
        }
        if times is not None:
            names |= _timed(program, names["profiled"], kernels, times)
        self._call: _LaunchCall = program.define(names)
        PROGRAMS.add(self._call)

    @property
    def text(self) -> str:
        """The source of the launch program."""
        return zlib.decompress(self._packed).decode()

    def straight(self) -> CompiledGraph:
        """`call` itself."""
        self._call.text = self.text
        return self._call

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if is_autocast_on():
            with without_autocast():
                return self(inputs)
        if not torch.is_grad_enabled():
            return self._call(inputs)
        set_grad_enabled(False)
        try:
            return self._call(inputs)
        finally:
            set_grad_enabled(True)


@final
class Frames:
    """Memory of calls in progress: one frame a call, kept for the next when it is done. Two
    threads that call at once have two frames; a call that fails drops its frame. So does the
    first call: a program that runs once (a training step that makes the optimizer's state) does
    not hold its arena for good.

    on_device: the arena is no frame's, but one of `arenas` of a call's stream (device_arena.py);
    the frame has those that are kept. Nothing of the schedule is kept: it is many times larger than
    what it says. Where the arena's layout depends on sizes, there is a plan of it.
    """

    __slots__ = (
        "_arena_plan",
        "_arena_size",
        "_constants",
        "_free",
        "_is_used",
        "_offsets",
        "_on_device",
        "_sizes",
        "_views",
    )

    def __init__(
        self,
        layout: FrameLayout,
        constants: Mapping[int, torch.Tensor],
        on_device: bool = False,
    ) -> None:
        self._on_device = on_device
        self._arena_size = layout.arena_size
        self._offsets = layout.offsets
        self._constants = [None if n is None else constants[n] for n in layout.constants]
        self._sizes = layout.sizes
        self._arena_plan = None if layout.arena is None else layout.arena.plan()
        self._views = layout.views
        self._free: list[tuple[Any, ...]] = []
        self._is_used = on_device

    def take(self) -> tuple[object, ...]:
        """A frame that nobody uses: (table, sizes, size values, *views, and what they need); with
        an arena that sizes lay out, that in the place of the views; on a device, arenas that are
        kept, by their streams."""
        try:
            return self._free.pop()
        except IndexError:
            return self._new()

    def give(self, frame: tuple[object, ...]) -> None:
        """A call is done with a frame."""
        if self._is_used:
            self._free.append(frame)
        self._is_used = True

    def _new(self) -> tuple[object, ...]:
        arena = torch.empty(self._arena_size + ALIGNMENT, dtype=torch.uint8, device="cpu")
        start = -arena.data_ptr() % ALIGNMENT
        # Not ctypes' arrays: each length of them is a class.
        pointers = array("Q", bytes(array("Q").itemsize * (len(self._offsets) + 1)))
        for place, (offset, constant) in enumerate(zip(self._offsets, self._constants)):
            if offset is not None:
                pointers[place] = arena.data_ptr() + start + offset
            elif constant is not None:
                pointers[place] = constant.data_ptr()
        sizes = array("q", bytes(array("q").itemsize * self._sizes))
        held = _Held(pointers.buffer_info()[0], (pointers, arena))
        first = (held, _Held(sizes.buffer_info()[0], sizes), sizes)
        if self._on_device:
            return (*first, {})
        if self._arena_plan is not None:
            return (*first, SizedArena(self._arena_plan, pointers))
        return (*first, *[view.made(arena, start) for view in self._views])


def frames_of(
    schedule: Schedule,
    sources: KernelSources,
    views: tuple[BufferView, ...],
    on_device: bool = False,
) -> Frames:
    """The frames of a schedule. views: those that its launch program unpacks."""
    constants = {number: tensor for number, (_, tensor) in enumerate(schedule.constants)}
    return Frames(lay_out_frame(schedule, sources, views, on_device), constants, on_device)


# --- private ---------------------------------------------------------------------------------


def _timed(
    program: LaunchProgram,
    profiled: ProfiledProgram,
    kernels: Sequence[Sequence[ProfiledKernel]],
    times: KernelTimes,
) -> dict[str, object]:
    """The names by which a program is timed."""
    calls = {n: str(m.op) for n, m in program.meanings.items() if isinstance(m, NamedOperator)}
    return TimedProgram(times, profiled, program.define, kernels, calls).names()


class _Held(int):
    """An address that keeps the memory behind it."""

    memory: Any

    def __new__(cls, address: int, memory: object) -> _Held:
        made = super().__new__(cls, address)
        made.memory = memory
        return made


def _reinterpret(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The memory of a tensor as elements of another dtype; only its offset means something."""
    if tensor.is_complex() and dtype.itemsize * 2 == tensor.dtype.itemsize:
        return torch.view_as_real(tensor).view(dtype)
    return (tensor if tensor.dim() else tensor.view(1)).view(dtype)


def _flatten(result: Any) -> Iterable[torch.Tensor | None]:
    """What a call returned, in order; whole numbers among it were known at capture."""
    if isinstance(result, (list, tuple)):
        return [tensor for part in result for tensor in _flatten(part)]
    return [] if isinstance(result, int) else [result]


def _restride(tensor: torch.Tensor, stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What an ATen kernel returned, in the layout that was expected of it: `meta` kernels of some
    operators (of linalg, for one) promise other strides than the CPU's give. Steps along a single
    element are only said otherwise: an optimizer compares a gradient's strides with its
    parameter's."""
    pairs = zip(tensor.shape, tensor.stride(), stride, strict=True)
    if tensor.dtype is dtype and (not tensor.numel() or all(n == 1 or a == b for n, a, b in pairs)):
        if tensor.is_conj() or tensor.is_neg():
            return tensor
        same = torch.empty(0, dtype=dtype, device=tensor.device)
        start = tensor.storage_offset()
        return same.set_(tensor.untyped_storage(), start, tensor.shape, stride)
    return torch.empty_strided(tensor.shape, stride, dtype=dtype, device=tensor.device).copy_(
        tensor
    )
