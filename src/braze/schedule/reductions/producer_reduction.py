"""Fuses pointwise values into the reduction kernel that reads them in the same order.

    kernel a: r0 < 6422528: z[r0 // .., r0 % 64, ..] = where(y[..] <= 0, 0, dy[..])
    kernel b: rows k < 392, c < 64 in lanes: p[k, c] = sum over s < 256 of z[0, c, 0, 256*k + s] ...
becomes
    kernel b: rows k, c: z[0, c, 0, 256*k + s] = where(y[..] <= 0, 0, dy[..]); p[k, c] = sum of it

The backward of a batch norm behind a relu, channels innermost, sums what the relu lets through,
and needs it once more when the sums are known: it is written on the way, and not read for them.
What is computed must be dense, and its parts must cover each point once. Everything that `a` reads
has to be laid out like what it writes, so that a point is at one place of memory in all of them, or
be a value of the group (c).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, Index, InRange, Load, Scalar
from braze.ir.kernels.scalars import expressions, loads, rebuild, replace_children, walk
from braze.ir.kernels.schedule import Accumulate, Kernel, Step, Store, offset
from braze.schedule.memory.allocate import may_move, written
from braze.schedule.memory.inplace_inputs import Rewritten
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, symbols
from braze.shapes.substitution import substitute

_MOST_BUFFERS = 24  # behind pointers


def sum_where_made(final: Rewritten) -> Rewritten:
    """The steps with as many kernels of points moved into those of their sums as can be."""
    steps: list[Step | None] = list(final.steps)
    readers: dict[Buffer, list[int]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, Kernel) and step.lanes:
            for buffer in step.memory:
                readers.setdefault(buffer, []).append(number)
    settled = final.settled
    for number, made in enumerate(final.steps):
        if not isinstance(made, Kernel) or not _is_of_points(made):
            continue
        places = [n for b in written(made) for n in readers.get(b, ()) if n > number and steps[n]]
        place = min(places, default=number)
        sums = steps[place]
        if place == number or (number < final.settled) != (place < final.settled):
            continue
        assert isinstance(sums, Kernel)
        merged = _merged(made, sums)
        between = [step for step in steps[number + 1 : place + 1] if step is not None]
        if merged is not None and may_move(between, 0, len(between) - 1):
            steps[number], steps[place] = merged, None
            settled -= place < final.settled
    return replace(final, steps=tuple([s for s in steps if s is not None]), settled=settled)


# --- private ---------------------------------------------------------------------------------


def _is_of_points(kernel: Kernel) -> bool:
    """Whether it stores points of one loop, and nothing else, by what is read at plain places."""
    if kernel.rows or kernel.product is not None or len(kernel.phases) != 1:
        return False
    (phase,) = kernel.phases
    if len(phase.loops) != 1 or phase.row or constant_value(phase.loops[0][1]) is None:
        return False
    return all(isinstance(s, Store) and _is_plain(s.value) for s in phase.body)


def _is_plain(value: Scalar) -> bool:
    for node in walk(value):
        if isinstance(node, (Index, InRange)):
            return False
        if isinstance(node, Load) and not all(isinstance(c, Expr) for c in node.coordinates):
            return False
    return True


@frozen
class _Place:
    """Where a point is among the sums': `at` in memory; `coordinates` of the target. point: the
    symbol of the points' loop; lane: of the sums' groups."""

    point: Symbol
    at: Expr
    coordinates: tuple[Expr, ...]
    lane: Symbol

    def store(self, store: Store) -> Store | None:
        """The store at that place; None where it would be at another."""
        if not self._is_there(offset(store.target, store.coordinates)):
            return None
        read = {load: self._load(store, load) for load in loads(store.value)}
        if None in read.values():
            return None

        def moved(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
            found = read.get(node) if isinstance(node, Load) else None
            return found or replace_children(node, below)

        value = rebuild(store.value, moved)
        return replace(store, coordinates=self.coordinates, value=value)

    def _load(self, store: Store, load: Load) -> Load | None:
        kind, wanted = load.buffer, store.target
        if (kind.shape, kind.stride) == (wanted.shape, wanted.stride):
            there = self._is_there(offset(kind, load.coordinates))
            return replace(load, coordinates=self.coordinates) if there else None
        places = [substitute(c, {self.point: self.at}) for c in expressions(load.coordinates)]
        alike = all(symbols(c) <= {self.lane} for c in places)
        return replace(load, coordinates=tuple(places)) if alike else None

    def _is_there(self, place: Expr) -> bool:
        return substitute(place, {self.point: self.at}) == self.at


def _merged(made: Kernel, sums: Kernel) -> Kernel | None:
    """The kernel of sums with the points' stores before them."""
    if len(sums.rows) > 2 or len(sums.phases) != 1 or len(sums.phases[0].loops) != 1:
        return None
    (phase,), targets = sums.phases, set(written(made))
    folds = [s for s in phase.body if isinstance(s, Accumulate)]
    read = [load for s in folds for load in loads(s.body) if load.buffer in targets]
    if len(folds) != len(phase.body) or sums.scratch or sums.columns:
        return None
    place = _place(made, sums, read)
    if place is None:
        return None
    points = [s for s in made.phases[0].body if isinstance(s, Store)]
    stores = [moved for s in points if (moved := place.store(s)) is not None]
    memory = tuple(dict.fromkeys([*sums.memory, *made.memory]))
    if len(stores) < len(points) or len(memory) > _MOST_BUFFERS:
        return None
    body: tuple[Store | Accumulate, ...] = (*stores, *folds)
    return replace(sums, phases=(replace(phase, body=body),), memory=memory)


def _place(made: Kernel, sums: Kernel, read: Sequence[Load]) -> _Place | None:
    """Where points are among the rows and points of the sums, which must be all of them in the
    order of memory."""
    (*part, (lane, lanes)) = sums.rows
    ((inner, length),), ((point, points),) = sums.phases[0].loops, made.phases[0].loops
    sizes = [constant_value(size) for size in (part[0][1] if part else 1, length, lanes, points)]
    found = {tuple(c for c in load.coordinates if isinstance(c, Expr)) for load in read}
    if None in sizes or len(found) != 1:
        return None
    count, each, wide, whole = (size or 0 for size in sizes)
    first = as_expr(part[0][0]) * each if part else as_expr(0)
    at = (first + as_expr(inner)) * wide + as_expr(lane)
    (coordinates,) = found
    there = all(offset(load.buffer, load.coordinates) == at for load in read)
    return _Place(point, at, coordinates, lane) if there and count * each * wide == whole else None
