"""Blocks of tall products, as convolutions are: the likeliest ones of many, by a small model.

    a program      reads (rows + columns) * k elements from the second-level cache, computes
                   rows * columns * k, and waits for memory as it begins
    a processor    has as many of them at once as its shared memory, registers and threads do for
    time           that of so many programs one after another, the last turn as long as a full one

Only the order counts, and what is far behind: a tuner times the first ones.
"""

from __future__ import annotations

import itertools
import math

from braze.ir.device_model import DeviceModel

Shape = tuple[int, int, int, int, int]  # rows, columns, summed, warps, stages

_COUNT = 7  # blocks that are worth building
_VARIED = 2  # of them in other ways, too

# Seconds until the first bytes are there, and of a turn of the loop.
_BEGINS, _TURNS = 1.5e-6, 1e-7
_SUMS = {2: 1 << 15, 4: 1 << 14}  # of a block: more, and registers spill
_OWN_REGISTERS = 64  # of a thread, beside its sums


def likely_shapes(
    rows: int, columns: int, summed: int, itemsize: int, device: DeviceModel
) -> list[Shape]:
    """The likeliest first, for a result of so many rows and columns, of matrix units: of the
    likeliest blocks the usual way each, then others of the first ones."""
    sizes = (rows, columns, summed)
    fitting = [block for block in _BLOCKS if math.prod(block) <= _SUMS[itemsize]]

    def fits(shape: Shape) -> bool:
        return math.isfinite(_seconds(shape, sizes, itemsize, device))

    blocks = filter(fits, [_usual(block, summed, itemsize) for block in fitting])
    usual = sorted(blocks, key=lambda shape: _seconds(shape, sizes, itemsize, device))[:_COUNT]
    others = [x for shape in usual[:_VARIED] for x in _others(shape, summed, itemsize)]
    return list(dict.fromkeys([*usual, *filter(fits, others)]))


# --- private ---------------------------------------------------------------------------------

_BLOCKS = (
    *itertools.product((64, 128, 256), (32, 64, 128)),
    *itertools.product((64, 128), (256,)),
)


def _usual(block: tuple[int, int], summed: int, itemsize: int) -> Shape:
    """What is summed at once is 128 bytes long; half of that where all blocks are full then, and
    the rest is a large part of them."""
    inner = 128 // itemsize
    if summed <= inner // 2 or (summed % inner == inner // 2 and summed < 8 * inner):
        inner //= 2
    warps = 8 if math.prod(block) >= 1 << 14 else 4
    return (*block, inner, warps, max(1, min(3, -(-summed // inner))))


def _others(shape: Shape, summed: int, itemsize: int) -> list[Shape]:
    """As many threads in twice or half as many warps; a block more on its way."""
    rows, columns, inner, warps, stages = shape
    sums = rows * columns // (32 * (12 - warps))
    found = [(rows, columns, inner, 12 - warps, stages)] if 16 <= sums <= 256 // itemsize else []
    if summed > stages * inner:
        found.append((rows, columns, inner, warps, stages + 1))
    return found


def _seconds(
    shape: Shape, sizes: tuple[int, int, int], itemsize: int, device: DeviceModel
) -> float:
    """About how long a product of (rows, columns, summed) takes in blocks of a shape."""
    (block, wide, inner, warps, stages), (rows, columns, summed) = shape, sizes
    shared = max(stages * (block + wide) * inner, block * wide) * itemsize
    most = device.blocks_bytes
    if shared > most:
        return math.inf
    threads = 32 * warps
    registers = threads * (_OWN_REGISTERS + block * wide // threads)
    together = max(1, min(most // shared, device.threads // threads, device.registers // registers))
    programs = -(-rows // block) * -(-columns // wide)
    together = min(together, -(-programs // device.processors))
    turns = -(-summed // inner)
    read = (block + wide) * turns * inner * itemsize / device.processor_cache
    done = 2 * block * wide * turns * inner / device.processor_products(itemsize)
    written = 2 * block * wide * itemsize / device.processor_memory
    each = together * (max(read, done) + written) + _BEGINS + turns * _TURNS
    return each * -(-programs // (device.processors * together))
