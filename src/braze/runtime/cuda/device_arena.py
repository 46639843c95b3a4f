"""The arena of a call on a device: what lies between its kernels.

    kept = arenas.get(stream)
    if kept is None: kept = new_arena(arenas, stream)
    arena, arena0, arena1, = kept

It comes from PyTorch's allocator on the stream of the call. A small one stays with the frame for
the next call on the default stream, with the views into it: work of one stream is done in order,
and no recording is made on that stream, so nothing else reads the memory later. Not where the call
makes something large: to allocate an arena costs nothing beside that, and a kept one would lie
there when memory is what is short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch

from braze.ir.kernels.loops import BufferView, bytes_of
from braze.ir.kernels.schedule import Schedule
from braze.runtime.launch.arena_view import ArenaView
from braze.runtime.launch.result_storage import buffers_of

# Bytes of an arena that a frame keeps: a block of the allocator's that small ones are cut of.
KEPT = 1 << 20
# Of something that is large.
_LARGE = 64 << 20
_DEFAULT_STREAM = 0  # as the driver has it

# The arena, then the views into it.
Held = tuple[torch.Tensor, ...]


def is_kept(schedule: Schedule) -> bool:
    """Whether a frame keeps the arena between calls on the default stream."""
    given = {*schedule.inputs, *(b for b, _ in schedule.constants), *dict(schedule.slots)}
    made = {buffer for step in schedule.steps for buffer in buffers_of(step)} - given
    return schedule.arena_size <= KEPT and all(bytes_of(buffer) < _LARGE for buffer in made)


@final
class DeviceArena:
    """Makes arenas of a schedule. size: in bytes."""

    __slots__ = ("_keeps", "_make", "_size", "_views")

    def __init__(
        self, schedule: Schedule, size: int, views: Sequence[BufferView], device: torch.device
    ) -> None:
        slots = dict(schedule.slots)
        self._size = size
        self._keeps = is_kept(schedule)
        self._make: Any = torch.empty(0, dtype=torch.uint8, device=device).new_empty_strided
        self._views = [ArenaView.of(view, slots[view.buffer].offset) for view in views]

    def new(self, arenas: dict[int, Held], stream: int) -> Held:
        """An arena for a call on that stream, kept in `arenas` where it may serve the next one."""
        arena = self._make((self._size,), (1,))
        made = (arena, *[view.made(arena, 0) for view in self._views])
        if self._keeps and stream == _DEFAULT_STREAM:
            arenas[stream] = made
        return made
