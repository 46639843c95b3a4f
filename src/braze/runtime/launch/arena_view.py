"""A view into a call's arena."""

from __future__ import annotations

from typing import final

import torch

from braze.frozen import frozen
from braze.ir.kernels.loops import BufferView


@final
@frozen
class ArenaView:
    """A view into the arena. start: where its buffer begins, in bytes; offset: from there, in
    elements."""

    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @staticmethod
    def of(view: BufferView, start: int) -> ArenaView:
        """`view`, whose buffer begins at `start`; what lies in the arena has known sizes."""
        shape = tuple([int(n) for n in view.shape])
        stride = tuple([int(n) for n in view.stride])
        return ArenaView(start, shape, stride, int(view.offset), view.dtype)

    def made(self, arena: torch.Tensor, base: int) -> torch.Tensor:
        """The tensor, in an arena whose slots are counted from `base`."""
        start = base + self.start
        end = arena.numel() - (arena.numel() - start) % self.dtype.itemsize
        flat = arena[start:end].view(self.dtype)
        return flat.as_strided(self.shape, self.stride, flat.storage_offset() + self.offset)
