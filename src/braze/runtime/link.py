"""A schedule and its sources to something that can be called."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from braze.compat.gradmode import is_autocast_on, set_grad_enabled, without_autocast
from braze.ir.kernel import KernelSources
from braze.ir.loops import BufferView
from braze.ir.schedule import ALIGNMENT, Schedule
from braze.options import Options
from braze.runtime.build import build, load
from braze.runtime.launch import Run, load_launcher, raise_fault
from braze.runtime.program import LaunchProgram, write_program
from braze.runtime.sized_arena import ArenaPlan, SizedArena, plan_arena
from braze.runtime.toolchain import NoCompiler, find_toolchain


def link(
    schedule: Schedule, sources: KernelSources, options: Options, takes_inputs: bool = False
) -> Linked | NoCompiler:
    """Build the units, load them and return the launch program; its text is `call.text`.

    takes_inputs: a call empties the list that it is given, and lets each input go when it is
    done with.

    A call takes the graph's inputs, typed as the schedule's, and returns its outputs: fresh
    tensors, or views as the schedule's outputs say. It may be made from several threads.
    """
    program = write_program(schedule, sources, takes_inputs)
    names: dict[str, Any] = dict(program.names)
    if sources.segments:
        toolchain = find_toolchain(options)
        if isinstance(toolchain, NoCompiler):
            return toolchain
        library = load(build(sources.units, toolchain, options))
        run: Run = load_launcher(toolchain, options)
        names["run"] = run
        names["raise_fault"] = raise_fault
        names["keep"] = library
        for segment in sources.segments:
            address = ctypes.cast(getattr(library, segment.entry), ctypes.c_void_p).value
            names[segment.entry] = address
    return Linked(program, names, Frames(schedule, sources, program.views))


@final
class Linked:
    """The compiled graph: calling it runs `call` of the launch program without gradients, and
    without autocast. names: what its text refers to beside what every program does."""

    __slots__ = ("_call", "text")

    def __init__(self, program: LaunchProgram, names: dict[str, Any], frames: Frames) -> None:
        names |= {
            "take_frame": frames.take,
            "give_frame": frames.free.append,
            "threads": torch.get_num_threads,
            "empty_strided": torch.empty_strided,
            "flatten": _flatten,
            "restride": _restride,
            "reinterpret": _reinterpret,
        }
        exec(compile(program.text, "<braze launch program>", "exec"), names)
        self._call = names["call"]
        self.text = program.text

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if is_autocast_on():
            with without_autocast():
                return self(inputs)
        if not torch.is_grad_enabled():
            return self._call(inputs)  # type: ignore[no-any-return]
        set_grad_enabled(False)
        try:
            return self._call(inputs)  # type: ignore[no-any-return]
        finally:
            set_grad_enabled(True)


@dataclass(slots=True)
class Frames:
    """Memory of calls in progress: one frame a call, kept for the next when it is done. Two
    threads that call at once have two frames; a call that fails drops its frame.

    has_arena: the arena is the frame's; on a device each call allocates one.
    arena_plan: where its layout depends on sizes.
    """

    schedule: Schedule
    sources: KernelSources
    views: tuple[BufferView, ...]
    has_arena: bool
    arena_plan: ArenaPlan | None
    free: list[tuple[Any, ...]]

    def __init__(
        self,
        schedule: Schedule,
        sources: KernelSources,
        views: tuple[BufferView, ...],
        has_arena: bool = True,
    ) -> None:
        self.schedule, self.sources, self.views, self.free = schedule, sources, views, []
        self.has_arena = has_arena
        sized = schedule.sized
        self.arena_plan = plan_arena(sized, sources.table, views) if sized else None

    def take(self) -> tuple[Any, ...]:
        """A frame that nobody uses: (table, sizes, size values, *views, and what they need); with
        an arena that sizes lay out, that in the place of the views."""
        try:
            return self.free.pop()
        except IndexError:
            return self._new()

    def _new(self) -> tuple[Any, ...]:
        schedule, table = self.schedule, self.sources.table
        size = schedule.arena_size if self.has_arena else 0
        arena = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
        start = -arena.data_ptr() % ALIGNMENT
        slots = dict(schedule.slots)
        pointers = (ctypes.c_void_p * (len(table) + 1))()
        constants = dict(schedule.constants)
        for place, buffer in enumerate(table):
            if buffer in slots:
                pointers[place] = arena.data_ptr() + start + slots[buffer].offset
            elif buffer in constants:
                pointers[place] = constants[buffer].data_ptr()
        sizes = (ctypes.c_long * max(len(self.sources.sizes), 1))()
        held = _Held(ctypes.addressof(pointers), (pointers, arena))
        first = (held, _Held(ctypes.addressof(sizes), sizes), sizes)
        if self.arena_plan is not None:
            return (*first, SizedArena(self.arena_plan, pointers))
        views = [_arena_view(arena, start + slots[v.buffer].offset, v) for v in self.views]
        return (*first, *views)


# --- private ---------------------------------------------------------------------------------


class _Held(int):
    """An address that keeps the memory behind it."""

    memory: Any

    def __new__(cls, address: int, memory: Any) -> _Held:
        made = super().__new__(cls, address)
        made.memory = memory
        return made


def _arena_view(arena: torch.Tensor, start: int, view: BufferView) -> torch.Tensor:
    """A view into the arena; `start` is where its buffer begins, in bytes."""
    end = arena.numel() - (arena.numel() - start) % view.dtype.itemsize
    flat = arena[start:end].view(view.dtype)
    shape = [int(n) for n in view.shape]  # type: ignore[arg-type]
    stride = [int(n) for n in view.stride]  # type: ignore[arg-type]
    offset = flat.storage_offset() + int(view.offset)  # type: ignore[arg-type]
    return flat.as_strided(shape, stride, offset)


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
    operators (of linalg, for one) promise other strides than the CPU's give."""
    pairs = zip(tensor.shape, tensor.stride(), stride, strict=True)
    if tensor.dtype is dtype and (not tensor.numel() or all(n == 1 or a == b for n, a, b in pairs)):
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=dtype, device=tensor.device).copy_(
        tensor
    )
