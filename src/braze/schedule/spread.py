"""Long rows shared by several programs, which hold a part each.

    kernel k0: rows i0 < 512; memory x, y
      for r0 < 131072: ...
becomes
    kernel k0_arrivals: t1[..] = 0
    kernel k0: rows i0 < 512; memory x, y, t0, t1
      a row over 16 programs: 8192 points each, read once
      for r0 < 131072: ...

A program that walks a row reads it again for each phase, from the cache if it is there still. With
one row a processor it is not, where those rows together are longer than the cache: softmax over
131,072 columns of float32 walks 69 MB at once. Held parts are read once; the programs of a row fold
their parts and wait for each other (`codegen/triton/spread.py`).

Refused: rows that one program holds or that more than 16 would have to, rows that whole parts do
not fill (with a last part that is not full, 100,004 columns took a seventh longer than walked,
50,304 a third), rows of unknown length, several loops or lanes, rows that are not aligned to 16
bytes; folds of other kinds and types than sums and extremes of float32; kernels that read memory
which they write, or that assert something: a program that ends early would keep the others waiting.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from braze.ir.loops import Buffer, InRange, Load, Scalar
from braze.ir.scalars import literal, loads, walk
from braze.ir.schedule import Accumulate, Kernel, Phase, Spread, Step, Store, offset
from braze.schedule.in_place import Rewritten
from braze.schedule.normalise import Names
from braze.schedule.target import CUDA, Target
from braze.shapes.expr import Expr, as_expr, constant_value, symbols

_HELD = 16384  # points of a row that one program holds by itself; and of all that a part reads
_LONGEST = 8192  # points of a part
_MOST_PARTS = 16
_PROCESSORS = 132
_KINDS = ("sum", "max", "min")
_ALIGNED = 16  # bytes


def spread_rows(final: Rewritten, names: Names, target: Target) -> Rewritten:
    """The steps, with programs that share rows where it pays."""
    made: list[Step] = []
    settled = final.settled
    for number, step in enumerate(final.steps):
        reads = _shared_reads(step, target) if isinstance(step, Kernel) else 0
        if isinstance(step, Kernel) and reads:
            made += _spread(step, reads, names)
            settled += number < final.settled
        else:
            made.append(step)
    return replace(final, steps=tuple(made), settled=settled)


def cuda_target(device: torch.device) -> Target:
    """What the schedule for a CUDA device decides by."""
    properties = torch.cuda.get_device_properties(device)
    return of_processors(CUDA, properties.multi_processor_count)


def of_processors(target: Target, processors: int) -> Target:
    """The target, of a device with so many multiprocessors: where the programs of a row might not
    all run at once, no rows are shared."""
    return target if processors >= _MOST_PARTS else replace(target, spread_bytes=0)


# --- private ---------------------------------------------------------------------------------


def _spread(kernel: Kernel, reads: int, names: Names) -> tuple[Kernel, Kernel]:
    """What sets the arrivals to zero, and the kernel."""
    rows = as_expr(1)
    for _, size in kernel.rows:
        rows = rows * size
    folding = [sum(isinstance(s, Accumulate) for s in phase.body) for phase in kernel.phases]
    meetings = sum(count > 0 for count in folding)
    length = _length(reads)
    parts = _points(kernel) // length
    like = kernel.memory[0]
    lines = _size(rows)
    told = sum(folding) + sum(folding[1:])  # of sums around a mean there may be one more to tell
    partials = names.buffer(like, (lines, told, parts), dtype=torch.float32)
    arrivals = names.buffer(like, (lines, meetings), dtype=torch.int32)
    row, meeting = names.symbol("i", lines), names.symbol("i", meetings)
    store = Store(arrivals, (as_expr(row), as_expr(meeting)), literal(0, torch.int32))
    phase = Phase(((row, lines), (meeting, meetings)), (store,))
    first = Kernel(f"{kernel.name}_arrivals", (), (phase,), (arrivals,))
    spread = Spread(parts, length, reads, partials, arrivals)
    memory = (*kernel.memory, partials, arrivals)
    return first, replace(kernel, spread=spread, memory=memory)


def _size(rows: Expr) -> int | Expr:
    known = constant_value(rows)
    return rows if known is None else known


def _points(kernel: Kernel) -> int:
    return constant_value(kernel.phases[0].loops[0][1]) or 0


def _length(reads: int) -> int:
    """Points of a part of rows of which so much is read."""
    return min(_LONGEST, _HELD >> (reads - 1).bit_length())


def _shared_reads(kernel: Kernel, target: Target) -> int:
    """How much is read of each row; 0 where rows are not to be shared."""
    plain = not (kernel.lanes or kernel.scratch or kernel.columns or kernel.product)
    if not plain or len(kernel.phases[0].loops) != 1 or len(kernel.phases) < 2:
        return 0
    points, reads = _points(kernel), _row_reads(kernel)
    if points <= _HELD or not reads or not _can_share(kernel):
        return 0
    if _PROCESSORS * points * sum(b.dtype.itemsize for b, _ in reads) <= target.spread_bytes:
        return 0
    parts, rest = divmod(points, _length(len(reads)))
    return len(reads) if parts <= _MOST_PARTS and not rest else 0


def _can_share(kernel: Kernel) -> bool:
    folds = [s for phase in kernel.phases for s in phase.body if isinstance(s, Accumulate)]
    simple = all(f.kind in _KINDS and f.dtype == torch.float32 for f in folds)
    if not (folds and simple and all(f.position is None for f in folds)):
        return False
    if any(isinstance(node, InRange) for scalar in _scalars(kernel) for node in walk(scalar)):
        return False
    same_device = all(b.device == kernel.memory[0].device for b in kernel.memory)
    return same_device and _reads_what_it_has(kernel)


def _reads_what_it_has(kernel: Kernel) -> bool:
    """Whether what is read of the buffers that are written is always the value just written."""
    statements = [s for phase in kernel.phases for s in (*phase.body, *phase.row)]
    stored = {s.target for s in statements if isinstance(s, Store)} & {*kernel.memory}
    places: dict[Buffer, tuple[Expr | Scalar, ...]] = {}
    for statement in statements:
        body = statement.value if isinstance(statement, Store) else statement.body
        for load in loads(body):
            if load.buffer in stored and places.get(load.buffer) != load.coordinates:
                return False
        if isinstance(statement, Store) and statement.target in stored:
            if statement.target in places:
                return False
            places[statement.target] = statement.coordinates
    return True


def _scalars(kernel: Kernel) -> list[Scalar]:
    statements = [s for phase in kernel.phases for s in (*phase.body, *phase.row)]
    return [s.value if isinstance(s, Store) else s.body for s in statements]


def _row_reads(kernel: Kernel) -> set[tuple[Buffer, Expr]]:
    """What is read of each row, at which places; nothing where a row is not aligned."""
    ((symbol, _),) = kernel.phases[0].loops
    rows = {row for row, _ in kernel.rows}
    found: set[tuple[Buffer, Expr]] = set()
    for load in (load for scalar in _scalars(kernel) for load in loads(scalar)):
        if load.buffer not in kernel.memory or not _is_plain(load):
            continue
        place = offset(load.buffer, load.coordinates)
        if symbol not in symbols(place) or not rows & symbols(place):
            continue
        width = _ALIGNED // load.buffer.dtype.itemsize
        if any(step % width for _, step in (place - as_expr(symbol)).terms):
            return set()
        found.add((load.buffer, place))
    return found


def _is_plain(load: Load) -> bool:
    return all(isinstance(c, Expr) for c in load.coordinates)
