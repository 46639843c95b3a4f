"""Splits long rows over several GPU programs, each of which holds a part.

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

A row may be several loops: a channel of a batch norm in training is one, 64 images of 3136 points,
whose sums are then not split (`schedule/reductions/choose_unsplit.py`).

Refused: rows that one program holds or that more than 64 would have to, rows of one loop that whole
parts do not fill (with a last part that is not full, 100,004 columns took a seventh longer than
walked, 50,304 a third), rows of unknown length, lanes, rows that are not aligned to 16 bytes; folds
of other kinds and types than sums and extremes of float32; kernels that read memory which they
write, but for values of a row that only one program needs, or that assert something: a program that
ends early would keep the others waiting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from braze.frozen import frozen
from braze.ir.device_model import model_of_device
from braze.ir.kernels.loops import Buffer, InRange, Load, Scalar
from braze.ir.kernels.scalars import literal, loads, walk
from braze.ir.kernels.schedule import (
    Accumulate,
    Kernel,
    Loop,
    Phase,
    Spread,
    Step,
    Store,
    offset,
    row_points,
    scalar_of,
)
from braze.ir.types import Size
from braze.schedule.analysis.cost import estimated
from braze.schedule.memory.inplace_inputs import Rewritten
from braze.schedule.simplify.normalize import Names
from braze.schedule.target import Target, gpu_target
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, symbols

_HELD = 16384  # points of a row that one program holds by itself; and of all that a part reads
_LONGEST = 8192  # points of a part
_FILLED = 1.125  # parts of so many times a row's points are as good as full
KINDS = ("sum", "max", "min")
_ALIGNED = 16  # bytes


def spread_rows(final: Rewritten, names: Names, target: Target) -> Rewritten:
    """The steps, with programs that share rows where it pays."""
    made: list[Step] = []
    settled = final.settled
    for number, step in enumerate(final.steps):
        cut = _cut_of(step, target) if isinstance(step, Kernel) else None
        if isinstance(step, Kernel) and cut is not None:
            made += _spread(step, cut, names)
            settled += number < final.settled
        else:
            made.append(step)
    return replace(final, steps=tuple(made), settled=settled)


def cuda_target(device: torch.device) -> Target:
    """What the schedule for a CUDA device decides by."""
    return gpu_target(model_of_device(device))


@frozen
class Cut:
    """A row in `parts` of `length` points, the last of which may have fewer; reads: how many values
    are read of each."""

    parts: int
    length: int
    reads: int


def cut_row(loops: Sequence[Loop], reads: int, target: Target) -> Cut | None:
    """How a row is shared of which so much is read; None if it is not."""
    points = row_points(loops)
    if points is None or points <= _HELD or not reads:
        return None
    longest = min(_LONGEST, _HELD >> (reads - 1).bit_length())
    parts = -(-points // longest)
    if parts > target.spread_parts:
        return None
    filled = points % longest == 0 or (len(loops) > 1 and _FILLED * points >= parts * longest)
    return Cut(parts, longest, reads) if filled else None


def row_reads(
    bodies: Iterable[Scalar], rows: Collection[Symbol], loops: Sequence[Loop]
) -> set[tuple[Buffer, Expr]]:
    """What is read of each row, at which places; nothing where a row is not aligned."""
    symbol, size = loops[-1]
    found: set[tuple[Buffer, Expr]] = set()
    for load in (load for body in bodies for load in loads(body)):
        if not _is_plain(load):
            continue
        place = offset(load.buffer, load.coordinates)
        if symbol not in symbols(place) or not symbols(place) & {*rows}:
            continue
        width = _ALIGNED // load.buffer.dtype.itemsize
        steps = [step for _, step in (place - as_expr(symbol)).terms]
        if len(loops) > 1:
            steps.append(constant_value(size) or 1)
        if any(step % width for step in steps):
            return set()
        found.add((load.buffer, place))
    return found


def is_worth_it(
    rows: Iterable[Size], loops: Sequence[Loop], read: set[tuple[Buffer, Expr]], target: Target
) -> bool:
    """Whether what all processors walk at once, a row each, is more than the cache holds."""
    processors = target.device.processors
    at_once = min(processors, estimated(rows)) if len(loops) > 1 else processors
    width = sum(buffer.dtype.itemsize for buffer, _ in read)
    return at_once * (row_points(loops) or 0) * width > target.spread_bytes


# --- private ---------------------------------------------------------------------------------


def _spread(kernel: Kernel, cut: Cut, names: Names) -> tuple[Kernel, Kernel]:
    """What sets the arrivals to zero, and the kernel."""
    rows = as_expr(1)
    for _, size in kernel.rows:
        rows = rows * size
    folding = [sum(isinstance(s, Accumulate) for s in phase.body) for phase in kernel.phases]
    meetings = sum(count > 0 for count in folding)
    like = kernel.memory[0]
    lines = _size(rows)
    told = sum(folding) + sum(folding[1:])  # of sums around a mean there may be one more to tell
    partials = names.buffer(like, (lines, told, cut.parts), dtype=torch.float32)
    arrivals = names.buffer(like, (lines, meetings), dtype=torch.int32)
    row, meeting = names.symbol("i", lines), names.symbol("i", meetings)
    store = Store(arrivals, (as_expr(row), as_expr(meeting)), literal(0, torch.int32))
    phase = Phase(((row, lines), (meeting, meetings)), (store,))
    first = Kernel(f"{kernel.name}_arrivals", (), (phase,), (arrivals,))
    spread = Spread(cut.parts, cut.length, cut.reads, partials, arrivals)
    memory = (*kernel.memory, partials, arrivals)
    return first, replace(kernel, spread=spread, memory=memory)


def _size(rows: Expr) -> int | Expr:
    known = constant_value(rows)
    return rows if known is None else known


def _cut_of(kernel: Kernel, target: Target) -> Cut | None:
    """How the kernel's rows are shared, if they are to be."""
    plain = not (kernel.lanes or kernel.scratch or kernel.columns or kernel.product)
    loops = kernel.phases[0].loops
    if not plain or not loops or len(kernel.phases) < 2:
        return None
    if any(phase.loops != loops for phase in kernel.phases) or not _can_share(kernel):
        return None
    read = {
        (buffer, place)
        for buffer, place in row_reads(_scalars(kernel), {row for row, _ in kernel.rows}, loops)
        if buffer in kernel.memory
    }
    if not read or not is_worth_it([size for _, size in kernel.rows], loops, read, target):
        return None
    return cut_row(loops, len(read), target)


def _can_share(kernel: Kernel) -> bool:
    folds = [s for phase in kernel.phases for s in phase.body if isinstance(s, Accumulate)]
    simple = all(f.kind in KINDS and f.dtype == torch.float32 for f in folds)
    if not (folds and simple and all(f.position is None for f in folds)):
        return False
    if any(isinstance(node, InRange) for scalar in _scalars(kernel) for node in walk(scalar)):
        return False
    same_device = all(b.device == kernel.memory[0].device for b in kernel.memory)
    return same_device and _reads_what_it_has(kernel)


def _reads_what_it_has(kernel: Kernel) -> bool:
    """Whether what is read of the buffers that are written is always the value just written; or,
    in a value of a row that points have no use for, what is replaced."""
    statements = [s for phase in kernel.phases for s in (*phase.body, *phase.row)]
    stored = {s.target for s in statements if isinstance(s, Store)} & {*kernel.memory}
    apart = _kept_by_one(kernel)
    places: dict[Buffer, tuple[Expr | Scalar, ...]] = {}
    before: dict[Buffer, tuple[Expr | Scalar, ...]] = {}
    for statement in statements:
        body = scalar_of(statement)
        for load in loads(body):
            if load.buffer not in stored or places.get(load.buffer) == load.coordinates:
                continue
            if load.buffer in places or statement not in apart:
                return False
            if before.setdefault(load.buffer, load.coordinates) != load.coordinates:
                return False
        if isinstance(statement, Store) and statement.target in stored:
            target, coordinates = statement.target, statement.coordinates
            if target in places or before.get(target, coordinates) != coordinates:
                return False
            if target in before and statement not in apart:
                return False
            places[target] = coordinates
    return True


def _kept_by_one(kernel: Kernel) -> list[Store]:
    """Stores of values of a row that no point has a use for: one program makes them."""
    kept: list[Store] = []
    needed = {load.buffer for scalar in _of_points(kernel) for load in loads(scalar)}
    for store in reversed([store for phase in kernel.phases for store in phase.row]):
        if store.target in needed:
            needed |= {load.buffer for load in loads(store.value)}
        else:
            kept.append(store)
    return kept


def _of_points(kernel: Kernel) -> Iterator[Scalar]:
    for phase in kernel.phases:
        for statement in phase.body:
            yield scalar_of(statement)


def _scalars(kernel: Kernel) -> list[Scalar]:
    statements = [s for phase in kernel.phases for s in (*phase.body, *phase.row)]
    return [scalar_of(s) for s in statements]


def _is_plain(load: Load) -> bool:
    return all(isinstance(c, Expr) for c in load.coordinates)
