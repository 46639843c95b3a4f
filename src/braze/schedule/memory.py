"""Where buffers live between the steps: offsets in one arena, reused when their readers are done.

A buffer lives from the step that writes it first to the step that reads it last. Largest first,
each is put at the lowest offset where nothing alive at the same time lies.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from braze.ir.loops import Buffer, LoopProgram
from braze.ir.schedule import ALIGNMENT, ExternStep, Kernel, Slot, Step
from braze.schedule.use import extern_reads
from braze.shapes.expr import constant_value


@dataclass(frozen=True, slots=True)
class Placement:
    """slots in the arena, its size in bytes, and what is allocated at each call."""

    slots: tuple[tuple[Buffer, Slot], ...]
    arena_size: int
    fresh: tuple[Buffer, ...]
    last_use: tuple[tuple[Buffer, int], ...]


@dataclass(frozen=True, slots=True)
class _Life:
    buffer: Buffer
    size: int
    first: int
    last: int


def place(program: LoopProgram, steps: Sequence[Step], most: int = sys.maxsize) -> Placement:
    """Slots for the buffers that steps write and that nobody outside sees, up to `most` bytes."""
    first, last = _lifetimes(steps)
    end = len(steps)
    for _, view in program.mutations:
        last[view.buffer] = end
    visible = {view.buffer for view in program.outputs} | _aliased_by_externs(steps)
    given = {*program.inputs, *(buffer for buffer, _ in program.constants)}
    sizes = {b: size_of(b) for b in first if b not in visible and b not in given}
    lives = [
        _Life(b, size, first[b], last[b])
        for b, size in sizes.items()
        if size is not None and size <= most
    ]
    slots, total = _fit(lives)
    fresh = tuple(b for b in _written_by_kernels(steps) if b not in slots and b not in given)
    temporary = set(fresh) | _allocated_by_externs(steps)
    outputs = {view.buffer for view in program.outputs}
    temporary |= {*program.inputs} - {target for target, _ in program.mutations}
    drops = tuple((b, last[b]) for b in last if b in temporary - outputs and last[b] < end)
    return Placement(tuple(slots.items()), total, fresh, drops)


def size_of(buffer: Buffer) -> int | None:
    """Bytes from the first to the last element; None for symbolic sizes."""
    total = 1
    for size, stride in zip(buffer.shape, buffer.stride):
        length, step = constant_value(size), constant_value(stride)
        if length is None or step is None:
            return None
        if length == 0:
            return 0
        total += (length - 1) * step
    return total * buffer.dtype.itemsize


def written(step: Step) -> tuple[Buffer, ...]:
    """The buffers that a step gives contents."""
    if isinstance(step, ExternStep):
        return tuple(b for b in step.call.outputs if b is not None)
    stored = {s.target for phase in step.phases for s in (*phase.body, *phase.row)}
    stored |= {column.target for column in step.columns}
    return tuple(b for b in step.memory if b in stored)


# --- private ---------------------------------------------------------------------------------


def _lifetimes(steps: Sequence[Step]) -> tuple[dict[Buffer, int], dict[Buffer, int]]:
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for number, step in enumerate(steps):
        planned = not isinstance(step, ExternStep) or step.out_op is not None
        for buffer in written(step):
            if planned:
                first.setdefault(buffer, number)
            last[buffer] = number
        for buffer in _touched(step):
            last[buffer] = number
    return first, last


def _touched(step: Step) -> Iterable[Buffer]:
    return step.memory if isinstance(step, Kernel) else set(extern_reads(step.call))


def _written_by_kernels(steps: Sequence[Step]) -> list[Buffer]:
    found: dict[Buffer, None] = {}
    for step in steps:
        if isinstance(step, Kernel):
            found.update(dict.fromkeys(written(step)))
    return list(found)


def _allocated_by_externs(steps: Sequence[Step]) -> set[Buffer]:
    return {
        buffer
        for step in steps
        if isinstance(step, ExternStep) and step.out_op is None
        for buffer in written(step)
    }


def _aliased_by_externs(steps: Sequence[Step]) -> set[Buffer]:
    """Arguments of operators whose results may be views of them."""
    found: set[Buffer] = set()
    for step in steps:
        if isinstance(step, ExternStep) and any(
            r.alias_info is not None for r in step.call.op._schema.returns
        ):
            found |= set(extern_reads(step.call))
    return found


def _fit(lives: Sequence[_Life]) -> tuple[dict[Buffer, Slot], int]:
    placed: list[tuple[_Life, int]] = []
    total = 0
    for life in sorted(lives, key=lambda life: (-life.size, life.first)):
        neighbours = sorted(
            (offset, offset + other.size)
            for other, offset in placed
            if other.first <= life.last and life.first <= other.last
        )
        at = 0
        for start, stop in neighbours:
            if at + life.size <= start:
                break
            at = max(at, -(-stop // ALIGNMENT) * ALIGNMENT)
        placed.append((life, at))
        total = max(total, at + life.size)
    return {life.buffer: Slot(offset, life.size) for life, offset in placed}, total
