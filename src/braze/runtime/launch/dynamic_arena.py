"""The arena of a graph whose sizes are symbols: laid out anew where a call's sizes are other ones.

def lay_out(numbers):
    (n_s0,) = numbers
    z0 = 4 * n_s0                        # bytes
    o0, e0 = 0, z0 + 63 & -64            # where a slot begins, and where the next one may
    o1, e1 = e0, e0 + z0 + 63 & -64
    o2, e2 = max(e0, ...), ...
    return (o0, o1, o2), max(e0, e1, e2)
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from braze.frozen import frozen
from braze.ir.generated_code import define
from braze.ir.kernels.loops import Buffer, BufferView
from braze.ir.kernels.schedule import ALIGNMENT, SizedSlot
from braze.ir.types import Size
from braze.runtime.launch.symbolic_sizes import sizes_text
from braze.shapes.binding import python_text
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, symbols

_MOST_UNUSED = 8  # times what is needed: larger memory is given back


@final
@frozen
class ArenaLayout:
    """An `ArenaPlan` as data: offsets and shapes are texts of functions."""

    symbols: tuple[Symbol, ...]
    offsets: str
    places: tuple[int | None, ...]
    views: tuple[tuple[int, torch.dtype], ...]
    shapes: str

    def plan(self) -> ArenaPlan:
        """The plan, its functions compiled."""
        offsets, shapes = (define([text], _FILE, {}) for text in (self.offsets, self.shapes))
        return ArenaPlan(self.symbols, offsets, self.places, self.views, shapes)


@final
@frozen
class ArenaPlan:
    """What arenas of one graph have in common.

    symbols: those whose numbers decide. offsets: of the slots in bytes, and the size of all, by
    the numbers. places: the slots' places in the table of pointers, None for one that no kernel
    is given. views: (slot, dtype) of each view; shapes: shape, stride and offset of each.
    """

    symbols: tuple[Symbol, ...]
    offsets: Callable[[Sequence[int]], tuple[tuple[int, ...], int]]
    places: tuple[int | None, ...]
    views: tuple[tuple[int, torch.dtype], ...]
    shapes: Callable[[Sequence[int]], tuple[tuple[Any, Any, int], ...]]


def plan_arena(
    sized: Sequence[tuple[Buffer, SizedSlot]], table: Sequence[Buffer], views: Sequence[BufferView]
) -> ArenaPlan:
    """The plan of sized slots; table: the buffers behind a graph's table of pointers."""
    return lay_out_arena(sized, table, views).plan()


def lay_out_arena(
    sized: Sequence[tuple[Buffer, SizedSlot]], table: Sequence[Buffer], views: Sequence[BufferView]
) -> ArenaLayout:
    """The same as data."""
    slots = {buffer: number for number, (buffer, _) in enumerate(sized)}
    places = {buffer: place for place, buffer in enumerate(table)}
    used = symbols_of_arena(sized, views)
    return ArenaLayout(
        used,
        _offsets_text(used, [slot for _, slot in sized]),
        tuple([places.get(buffer) for buffer in slots]),
        tuple([(slots[view.buffer], view.dtype) for view in views]),
        sizes_text(used, tuple([(v.shape, v.stride, v.offset) for v in views])),
    )


def symbols_of_arena(
    sized: Sequence[tuple[Buffer, SizedSlot]], views: Sequence[BufferView]
) -> tuple[Symbol, ...]:
    """The symbols that slots and views depend on, by name."""
    sizes: list[Size] = [slot.size for _, slot in sized]
    for view in views:
        sizes += [*view.shape, *view.stride, view.offset]
    found = {symbol for size in sizes for symbol in symbols(size)}
    return tuple(sorted(found, key=lambda symbol: symbol.name))


@final
class SizedArena:
    """Memory of one call at a time, kept for the next. numbers: what it is laid out for, in the
    order of the plan's symbols; views: into it, in the order of the plan's."""

    __slots__ = ("_memory", "_plan", "_pointers", "_typed", "numbers", "views")

    def __init__(self, plan: ArenaPlan, pointers: array[int]) -> None:
        """pointers: the frame's table."""
        self._plan, self._pointers = plan, pointers
        self._memory = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._typed: dict[torch.dtype, torch.Tensor] = {}
        self.numbers: tuple[int, ...] | None = None
        self.views: list[torch.Tensor] = []

    def lay_out(self, numbers: tuple[int, ...]) -> None:
        """Slots and views for these numbers; in other memory where it is too small, or far too
        large."""
        plan = self._plan
        self.numbers = None
        self.views = []  # what holds the memory that may go
        offsets, size = plan.offsets(numbers)
        held = self._memory.numel()  # zero only before the first call
        if not held or not size <= held <= max(size, ALIGNMENT) * _MOST_UNUSED:
            self._allocate(size)
        start = self._memory.data_ptr()
        for place, offset in zip(plan.places, offsets):
            if place is not None:
                self._pointers[place] = start + offset
        for (slot, dtype), (shape, stride, offset) in zip(plan.views, plan.shapes(numbers)):
            flat = self._typed[dtype]
            first = flat.storage_offset() + offsets[slot] // dtype.itemsize + offset
            self.views.append(flat.as_strided(shape, stride, first))
        self.numbers = numbers

    def _allocate(self, size: int) -> None:
        self._typed.clear()
        self._memory = torch.empty(0, dtype=torch.uint8, device="cpu")  # the old memory goes first
        memory = torch.empty(size + ALIGNMENT, dtype=torch.uint8, device="cpu")
        start = -memory.data_ptr() % ALIGNMENT
        self._memory = memory[start : start + max(size, ALIGNMENT)]
        for _, dtype in self._plan.views:
            if dtype not in self._typed:
                self._typed[dtype] = self._memory.view(dtype)


# --- private ---------------------------------------------------------------------------------


_FILE = "<arena of a graph>"


def _offsets_text(used: Sequence[Symbol], slots: Sequence[SizedSlot]) -> str:
    names = {symbol: f"n_{symbol.name}" for symbol in used}
    lines = [f"({', '.join(names.values())},) = numbers"] if names else []
    sizes: dict[Expr, str] = {}
    for number, slot in enumerate(slots):
        expression = as_expr(slot.size)
        if expression not in sizes:
            sizes[expression] = f"z{len(sizes)}"
            lines.append(f"{sizes[expression]} = {_bytes(expression, names)}")
        lines.append(f"o{number} = {_greatest([f'e{place}' for place in slot.behind])}")
        lines.append(
            f"e{number} = o{number} + {sizes[expression]} + {ALIGNMENT - 1} & -{ALIGNMENT}"
        )
    every = range(len(slots))
    offsets = "".join(f"o{number}, " for number in every)
    lines.append(f"return ({offsets}), {_greatest([f'e{number}' for number in every])}")
    return "\n".join(["def lay_out(numbers):", *(f"    {line}" for line in lines)])


def _bytes(size: Expr, names: dict[Symbol, str]) -> str:
    """The size as text; that of an empty buffer may come out negative."""
    text = python_text(size, names)
    return text if constant_value(size) is not None else f"max(0, {text})"


def _greatest(names: Sequence[str]) -> str:
    if len(names) < 2:
        return names[0] if names else "0"
    return f"max({', '.join(names)})"
