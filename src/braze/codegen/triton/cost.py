"""Block sizes and warps, by a model of the device: bytes in flight, registers, programs enough.

A warp has 32 threads; a thread moves 16 bytes at once. Memory is busy when a multiprocessor has
some 40 KB on the way, so programs hold 16 to 32 bytes a thread and several fit a multiprocessor.
"""

from __future__ import annotations

import math

from braze.frozen import frozen
from braze.ir.device_model import DeviceModel
from braze.ir.kernels.loops import Load
from braze.ir.kernels.scalars import loads
from braze.ir.kernels.schedule import Accumulate, Kernel, Spread, Store, offset, scalar_of
from braze.ir.types import Size
from braze.shapes.expr import as_expr, constant_value, symbols

_WANTED = 4  # programs of each processor
_GUESS = 1024  # of a size about which nothing is known

PERSISTENT_ROW = 16384  # points of a row that registers hold
_PERSISTENT_POINTS = 32768  # of all rows of a program, times the values kept of each
_FEW_READS = 2
_ON_ITS_WAY = 160 / 228  # of a processor's shared memory, at most
_LEAST_LANES = 16  # a sector of memory, of what is narrowest
_HELD_LANES = 8192  # points of all lanes of a program that registers hold
_JOINING_WARPS = 4
_LANE_BYTES = 16384  # of what all lanes of a program read at once, where they walk


@frozen
class BlockSizes:
    """rows: 0 for one row at a time."""

    rows: int
    inner: int
    warps: int
    persistent: bool = False
    stages: int = 1


def flat_blocks(kernel: Kernel, device: DeviceModel) -> BlockSizes:
    """Of a pointwise kernel: two reads of 16 bytes a thread of what is narrowest, up to 16 points;
    eight where more than two things are read, fewer where programs would be too few."""
    reads = {x for s in kernel.phases[0].body for x in loads(scalar_of(s))}
    points = estimate(*(size for _, size in (*kernel.rows, *kernel.phases[0].loops)))
    narrowest = min((b.dtype.itemsize for b in kernel.memory), default=4)
    each = min(16, 32 // narrowest) if len(reads) <= _FEW_READS else 8
    block = 128 * max(each, 8)
    while block > 128 and points < block * _WANTED * device.processors:
        block //= 2
    return BlockSizes(0, block, max(1, min(4, block // 256)))


def tile_blocks(kernel: Kernel) -> BlockSizes:
    """Of a pointwise kernel over a tile: both sides of whole lines of memory."""
    (_, across), (_, along) = kernel.phases[0].loops
    rows = min(64, power_of_two(estimate(across)))
    inner = min(64, power_of_two(estimate(along)))
    return BlockSizes(rows, inner, max(1, min(8, rows * inner // 512)))


def block_sizes(kernel: Kernel, device: DeviceModel) -> BlockSizes:
    """Of a kernel with rows."""
    return _lane_blocks(kernel, device) if kernel.lanes else _row_blocks(kernel, device)


def spread_warps(kernel: Kernel, spread: Spread) -> int:
    """Of a program that holds a part of a row: a thread has 32 values. Where a row is several
    loops, a channel of a batch norm, at most four warps: each of them joins what the programs tell
    each other (of 8,192 points each on an H200: four 117 us, eight 122, sixteen 136)."""
    if len(kernel.phases[0].loops) > 1:
        return max(1, min(_JOINING_WARPS, spread.length // 1024))
    return max(1, min(16, spread.length * power_of_two(spread.reads) // 1024))


def power_of_two(value: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(value - 1, 0).bit_length()


def estimate(*sizes: Size) -> int:
    """The product of sizes; of symbols, the values that they had."""
    total = 1
    for size in sizes:
        constant = constant_value(size)
        total *= _guess(size) if constant is None else max(constant, 1)
    return total


# --- private ---------------------------------------------------------------------------------


def _guess(size: Size) -> int:
    hints = [s.hint for s in symbols(size)]
    known = [hint for hint in hints if hint is not None]
    return (
        math.prod(known) if len(known) == len(hints) and len(as_expr(size).terms) == 1 else _GUESS
    )


def _row_blocks(kernel: Kernel, device: DeviceModel) -> BlockSizes:
    """Rows whose points are neighbours in memory."""
    inner = [size for _, size in kernel.phases[0].loops]
    known = all(constant_value(size) is not None for size in inner)
    rows = estimate(*(size for _, size in kernel.rows))
    row = power_of_two(estimate(*inner))
    if kernel.columns:
        stages = _stages(kernel, row, device)
        warps = max(row // 1024, _least_warps(kernel, row))
        return BlockSizes(0, row, max(1, min(16, warps)), True, stages)
    reads_again = len(kernel.phases) > 1
    searches = _has(kernel, "argmax", "argmin")
    limit = PERSISTENT_ROW if reads_again else 8192 if searches else 2048
    kept = 1 + len(kernel.scratch)
    if known and (kernel.scratch or (row <= limit and row * kept <= _PERSISTENT_POINTS)):
        together = max(1, 1024 // row)
        while together > 1 and rows < together * _WANTED * device.processors:
            together //= 2
        each = 1024 if searches else 512  # points of a warp
        warps = max(1, min(16, row * together // each))
        return BlockSizes(together if together > 1 else 0, row, warps, True)
    if _walks(kernel) > 1:
        # One program a multiprocessor: the second walk finds most of the row in the cache.
        narrow = max(b.dtype.itemsize for b in kernel.memory) <= 2
        block = min(row, 32768 if narrow else 16384)
        return BlockSizes(0, block, max(1, min(32, block // 512)))
    if rows < device.processors:
        block = min(row, 8192)
        return BlockSizes(0, block, max(1, min(16, block // 512)))
    block = min(row, 1024 if searches else 2048)
    exponential = _has(kernel, "max") and len(kernel.phases) > 1
    if exponential:
        return BlockSizes(0, block, max(1, block // 256))
    return BlockSizes(0, block, max(1, block // 512), stages=_stages(kernel, block, device))


def _stages(kernel: Kernel, block: int, device: DeviceModel) -> int:
    """How many blocks of what is read along the row shared memory has room for, three at most."""
    room = round(device.processor_shared_bytes * _ON_ITS_WAY)
    return max(1, min(3, room // max(block * _read_bytes(kernel), 1)))


def _read_bytes(kernel: Kernel) -> int:
    """Bytes that are read for each point of a row."""
    return sum(x.dtype.itemsize for x in _reads(kernel))


def _reads(kernel: Kernel) -> set[Load]:
    """What is read for each point of a row."""
    bodies = [scalar_of(s) for phase in kernel.phases for s in phase.body]
    stored = {s.target for phase in kernel.phases for s in phase.body if isinstance(s, Store)}
    bodies += [column.body for column in kernel.columns]
    inner = {symbol for symbol, _ in kernel.phases[0].loops}
    return {
        x
        for body in bodies
        for x in loads(body)
        if x.buffer not in stored and symbols(offset(x.buffer, x.coordinates)) & inner
    }


def _least_warps(kernel: Kernel, points: int) -> int:
    """As many that a thread of a row has no more neighbouring points than are 16 bytes of what is
    written. Of what is read Triton has as many as are 16 bytes of the narrowest: where those are
    more, and a thread has room for them, it computes everything in both layouts. With a mask of
    dropout (16 points, results of bfloat16 8) the backward of GPT-2's layer norms took 255
    registers of 32 threads and 28 us, of 128 threads, 8 points each, it needs 72."""
    stores = [s.target for phase in kernel.phases for s in phase.body if isinstance(s, Store)]
    most = 16 // max((b.dtype.itemsize for b in stores if b in kernel.memory), default=1)
    read = 16 // min((x.dtype.itemsize for x in _reads(kernel)), default=16)
    return points // (32 * most) if read > most else 1


def _has(kernel: Kernel, *kinds: str) -> bool:
    """Whether it folds in one of these ways."""
    folds = [s for phase in kernel.phases for s in phase.body if isinstance(s, Accumulate)]
    return any(fold.kind in kinds for fold in folds)


def _walks(kernel: Kernel) -> int:
    """How often a row is read from memory, if it is not held: once for a maximum and the sum of
    exponentials that it shifts."""
    inner = {symbol for symbol, _ in kernel.phases[0].loops}
    reading = 0
    follows_maximum = False
    for phase in kernel.phases:
        bodies = [scalar_of(s) for s in phase.body]
        places = [offset(x.buffer, x.coordinates) for body in bodies for x in loads(body)]
        reads = any(symbols(place) & inner for place in places)
        reading += reads and not follows_maximum
        follows_maximum = any(isinstance(s, Accumulate) and s.kind == "max" for s in phase.body)
    return reading


def _lane_blocks(kernel: Kernel, device: DeviceModel) -> BlockSizes:
    """Rows that are neighbours in memory, each with points far apart."""
    inner = [size for _, size in kernel.phases[0].loops]
    known = all(constant_value(size) is not None for size in inner)
    points = power_of_two(estimate(*inner))
    lanes = min(128, power_of_two(estimate(kernel.rows[-1][1])))
    rows = estimate(*(size for _, size in kernel.rows))
    while lanes > _LEAST_LANES and rows < lanes * _WANTED * device.processors // 2:
        lanes //= 2
    kept = 1 + len(kernel.scratch)
    few = rows < lanes * device.processors // 2  # the time of one program is what it takes
    most, warps = (_PERSISTENT_POINTS, 32) if few else (_HELD_LANES, 16)
    if known and len(kernel.phases) > 1 and points * _LEAST_LANES * kept <= most:
        while points * lanes * kept > most:
            lanes //= 2
    if known and (kernel.scratch or points * lanes * kept <= most):
        while lanes > 8 and points * lanes * kept > (_HELD_LANES if few else most):
            lanes //= 2
        each = 512 if few or len(kernel.phases) < 2 else 1024  # points of a warp
        return BlockSizes(lanes, points, max(1, min(warps, points * lanes // each)), True)
    each = power_of_two(max(_read_bytes(kernel), 2))
    block = max(1, min(points, _LANE_BYTES // each // lanes))
    warps = 16 if few else 4
    return BlockSizes(lanes, block, max(1, min(warps, block * lanes // 512)), stages=2)
