"""Which kernels begin at the end of what they read.

    k0: reads x (200 MB), forwards        k0: reads x, forwards
    k1: reads x, writes y           ->    k1: reads x, writes y, backwards

What a kernel touched last is still in the second-level cache when the next one starts: it is read
first. A batch norm in training reads its image twice so, and a quarter of it from the cache.
Refused: kernels that sum columns over their rows, and buffers of symbolic size or so small that
the cache holds all of them.
"""

from __future__ import annotations

from braze.codegen.triton.tiling import is_flat
from braze.ir.loops import Buffer
from braze.ir.schedule import Kernel, Schedule
from braze.shapes.expr import constant_value

_LARGE = 24 << 20  # bytes: half of the second-level cache


def backward_kernels(schedule: Schedule) -> frozenset[Kernel]:
    """The kernels whose programs are numbered backwards."""
    found: set[Kernel] = set()
    touched: dict[Buffer, bool] = {}  # large ones, by the last kernel that had such: backwards?
    for step in schedule.steps:
        if not isinstance(step, Kernel):
            touched = {}
            continue
        sizes = {b: size for b in step.memory if (size := _bytes(b)) >= _LARGE}
        if not sizes or not (step.rows or is_flat(step)):
            continue
        again = {b: size for b, size in sizes.items() if b in touched}
        forwards = sum(size for b, size in again.items() if not touched[b])
        plain = not step.columns and step.product is None
        turned = plain and 2 * forwards > sum(again.values())
        if turned:
            found.add(step)
        touched = dict.fromkeys(sizes, turned)
    return frozenset(found)


# --- private ---------------------------------------------------------------------------------


def _bytes(buffer: Buffer) -> int:
    """Of the buffer's elements; 0 where sizes are symbols."""
    total = buffer.dtype.itemsize
    for size, stride in zip(buffer.shape, buffer.stride, strict=True):
        if constant_value(stride) != 0:
            total *= constant_value(size) or 0
    return total
