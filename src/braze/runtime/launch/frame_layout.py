"""The memory of a call as data: what `Frames` needs of a schedule, and a package holds."""

from __future__ import annotations

from typing import final

from braze.frozen import frozen
from braze.ir.kernels.kernel import KernelSources
from braze.ir.kernels.loops import BufferView
from braze.ir.kernels.schedule import Schedule
from braze.runtime.launch.arena_view import ArenaView
from braze.runtime.launch.dynamic_arena import ArenaLayout, lay_out_arena


@final
@frozen
class FrameLayout:
    """arena_size: in bytes. offsets: by place in the table of pointers, where in the arena its
    buffer begins, None for one that is not there. constants: the same, which of the graph's
    constants it is, by number. sizes: how many numbers kernels are given. views: into an arena of
    known sizes; arena: of one whose layout depends on sizes."""

    arena_size: int
    offsets: tuple[int | None, ...]
    constants: tuple[int | None, ...]
    sizes: int
    views: tuple[ArenaView, ...]
    arena: ArenaLayout | None


def lay_out_frame(
    schedule: Schedule,
    sources: KernelSources,
    views: tuple[BufferView, ...],
    on_device: bool = False,
) -> FrameLayout:
    """The layout of a schedule's frames. views: those that its launch program unpacks; on_device:
    the arena is not the frame's."""
    slots, sized = dict(schedule.slots), schedule.sized
    numbers = {buffer: number for number, (buffer, _) in enumerate(schedule.constants)}
    placed = () if sized or on_device else views
    return FrameLayout(
        0 if on_device else schedule.arena_size,
        tuple([slots[b].offset if b in slots else None for b in sources.table]),
        tuple([numbers.get(buffer) for buffer in sources.table]),
        max(len(sources.sizes), 1),
        tuple([ArenaView.of(view, slots[view.buffer].offset) for view in placed]),
        lay_out_arena(sized, sources.table, views) if sized else None,
    )
