"""Fuses sums over rows into kernels that read the same rows for something else.

    kernel a: rows i < 16384: dx[i, r] = ... sums over r of x[i, r] and dy[i, r] ...
    kernel b: rows k < 16, c < 4096 in lanes: part[k, c] = sum over s of dy[1024*k + s, c]
    kernel c: rows c < 4096 in lanes: sum over k < 16 of part[k, c]
becomes
    kernel a: rows i < 16384, 63 a task: dx ...; part[task, r] = sum over its rows of dy[i, r]
    kernel c: ... sum over k < 261 of part[k, c]

The backward of a normalisation reads its inputs once this way. Both kernels must run over the same
rows and points, and rows must be short enough for registers. Rows may be two axes, in an order of
memory that is another one for some of what is read (attention with the batch in front: 197 tokens
of 32 images are rows there, 32 images of 197 tokens here); sums do not mind the order. Of what `a`
writes, b may read what it finds at the same row and point: that is in a register then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import permutations
from typing import final

from braze.frozen import frozen
from braze.ir.kernels.loops import Apply, Buffer, Cast, Guarded, Index, Literal, Load, Scalar
from braze.ir.kernels.scalars import (
    cast,
    literal,
    loads,
    rebuild,
    replace_children,
    substitute_symbols,
)
from braze.ir.kernels.schedule import (
    Accumulate,
    Column,
    Kernel,
    Loop,
    Step,
    Store,
    offset,
    row_points,
    scalar_of,
    statements_of,
)
from braze.schedule.memory.allocate import memory_of, written
from braze.schedule.memory.inplace_inputs import Rewritten
from braze.schedule.memory.step_order import StepPlaces
from braze.schedule.simplify.normalize import Names
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, floor_div, modulo

_WIDEST_ROW = 8192
_LEAST_BLOCK = 8  # rows of a task
_SHORT_ROW = 1024  # points that one warp holds: twice as many tasks


def merge_columns(final: Rewritten, names: Names, tasks: int) -> Rewritten:
    """The steps with as many such sums merged as can be, over about so many tasks."""
    merging = _Merging(final, names, tasks)
    merging.run()
    return merging.places.rewritten(final)


# --- private ---------------------------------------------------------------------------------


@frozen
class _Partial:
    """One of b's sums: its buffer [parts, points], and the sum over b's symbols."""

    target: Buffer
    fold: Accumulate


# b's symbols, by those of a.
_Places = Mapping[Symbol, Expr]


@frozen
class _Merged:
    """kernel: a with b's sums; moved: b's buffers -> the new ones; tasks: how many parts they
    have."""

    kernel: Kernel
    moved: Mapping[Buffer, Buffer]
    tasks: int


@final
class _Merging:
    """Pairs of a kernel with sums (b) and one that may take them (a), smallest places first.

    A pair that will not do is asked again only where one of both kernels, what the later one has
    to wait for, or who reads the sums has changed: a program of many layers has many pairs.
    """

    def __init__(self, final: Rewritten, names: Names, tasks: int) -> None:
        self.places = StepPlaces(final.steps)
        self._settled = final.settled
        self._names = names
        self._tasks = tasks
        # By place: of kernels with sums these and their points, of kernels that may take some
        # theirs; and of both the last place that must come before.
        self._partials: dict[int, list[_Partial]] = {}
        self._widths: dict[int, int] = {}
        self._takers: dict[int, int] = {}
        self._conflict: dict[int, int] = {}
        # The places of both kinds, in order, by the points of a row.
        self._with_sums: dict[int, list[int]] = {}
        self._taking: dict[int, list[int]] = {}
        self._waiting: list[tuple[int, int]] = []
        self._queued: set[tuple[int, int]] = set()

    def run(self) -> None:
        """Merge until no pair is left."""
        places = range(len(self.places.steps))
        for place in places:
            self._classify(place)
        for place in places:
            self._queue(place, later=True)
        while self._waiting:
            pair = heappop(self._waiting)
            self._queued.discard(pair)
            self._merge(*pair)

    def _classify(self, place: int) -> None:
        """Enter the step of a place among those that have sums or take them."""
        if place in self._partials:
            del self._partials[place]
            self._with_sums[self._widths.pop(place)].remove(place)
        if place in self._takers:
            self._taking[self._takers.pop(place)].remove(place)
        self._conflict.pop(place, None)
        step = self.places.steps[place]
        if not isinstance(step, Kernel):
            return
        partials, points = _partials(step), _taken_points(step, self._tasks)
        width = constant_value(step.rows[-1][1]) if partials else None
        if partials and width is not None:
            self._partials[place], self._widths[place] = partials, width
            insort(self._with_sums.setdefault(width, []), place)
        if points:
            self._takers[place] = points
            insort(self._taking.setdefault(points, []), place)
        if place in self._partials or points:
            self._conflict[place] = self.places.last_conflict(place)

    def _queue(self, place: int, *, later: bool) -> None:
        """Let the pairs of a place's step wait. later: those alone in which it comes later."""
        if place in self._partials:
            takers = self._taking.get(self._widths[place], [])
            low = bisect_left(takers, self._conflict[place])
            high = bisect_left(takers, place) if later else len(takers)
            for a in takers[low:high]:
                self._wait(place, a)
        if place in self._takers:
            others = self._with_sums.get(self._takers[place], [])
            low = bisect_right(others, self._conflict[place])
            high = bisect_left(others, place) if later else len(others)
            for b in others[low:high]:
                self._wait(b, place)

    def _wait(self, b: int, a: int) -> None:
        if (b, a) not in self._queued and self._may_meet(b, a):
            self._queued.add((b, a))
            heappush(self._waiting, (b, a))

    def _may_meet(self, b: int, a: int) -> bool:
        """Whether the later of both kernels may run where the earlier one does. What `a` writes is
        in registers, if b comes later and reads it."""
        if a == b or (a < self._settled) != (b < self._settled):
            return False
        return self._conflict[b] <= a if a < b else self._conflict[a] < b

    def _merge(self, b: int, a: int) -> None:
        partials = self._partials.get(b)
        if partials is None or a not in self._takers or not self._may_meet(b, a):
            return
        first, second = self.places.steps[a], self.places.steps[b]
        assert isinstance(first, Kernel) and isinstance(second, Kernel)
        columns = _columns(first, second, partials)
        if not columns:
            return
        made = _with_columns(first, second, columns, self._names, self._tasks)
        totals = _totals(self.places, made, {p.target for p in partials})
        if totals is None:
            return
        early, late = min(a, b), max(a, b)
        touched = {*memory_of(first), *memory_of(second)}
        self._change({**totals, late: None, early: made.kernel}, touched)

    def _change(self, steps: Mapping[int, Step | None], touched: set[Buffer]) -> None:
        """Replace steps, and let all pairs wait for which that may matter."""
        affected = {place for place, last in self._conflict.items() if last in steps}
        for place, step in steps.items():
            self.places.put(place, step)
            if step is not None:
                touched |= {*memory_of(step)}
        for place in steps:
            self._classify(place)
        for place in affected - {*steps}:
            self._conflict[place] = self.places.last_conflict(place)
        affected |= {*steps, *self.places.touching(touched)}
        for place in sorted(affected):
            self._queue(place, later=False)


def _partials(step: Step) -> list[_Partial]:
    """The sums of a kernel that computes nothing but parts of sums over rows."""
    if not isinstance(step, Kernel) or not step.lanes or len(step.rows) != 2:
        return []
    if len(step.phases) != 1 or len(step.phases[0].loops) > 2:
        return []
    (phase,) = step.phases
    folds = {s.target: s for s in phase.body if isinstance(s, Accumulate) and s.kind == "sum"}
    at = tuple(as_expr(symbol) for symbol, _ in step.rows)
    found = []
    for store in phase.row:
        fold = folds.get(store.value.buffer) if isinstance(store.value, Load) else None
        if fold is None or store.coordinates != at:
            return []
        found.append(_Partial(store.target, fold))
    return found if len(found) == len(phase.body) else []


def _taken_points(first: Kernel, tasks: int) -> int | None:
    """The points of the sums that a kernel may do if they are over its rows: it has so many rows
    that it is worth it, and so many points as a program holds; None where it may do none."""
    inner = first.phases[0].loops
    if first.lanes or first.chunks or len(first.rows) > 2 or len(inner) != 1:
        return None
    if not any(isinstance(s, Accumulate) for phase in first.phases for s in phase.body):
        return None
    rows, points = row_points(first.rows), constant_value(inner[0][1])
    if rows is None or points is None or rows < _LEAST_BLOCK * tasks or points > _WIDEST_ROW:
        return None
    return points


def _columns(first: Kernel, second: Kernel, partials: Sequence[_Partial]) -> list[_Partial]:
    """The second's sums, by the first's symbols: of all orders that its rows may have, where most
    of what they read is read by the first, too. Empty where none will do."""
    best: tuple[int, list[_Partial]] = (-1, [])
    for places in _orders(first, second, partials):
        made = [_at(first, partial, places) for partial in partials]
        if None in made:
            continue
        found = [partial for partial in made if partial is not None]
        met = _met(first, found)
        if met > best[0] and (met or len(first.rows) == 1):
            best = met, found
    return best[1]


def _orders(first: Kernel, second: Kernel, partials: Sequence[_Partial]) -> Iterator[_Places]:
    """All ways in which the second's parts may be the first's rows, every one of them once."""
    part, (column, _) = second.rows
    inner = second.phases[0].loops
    point = {column: as_expr(first.phases[0].loops[0][0])}
    if len(inner) == 1:
        (along,) = inner
        for order in permutations(first.rows):
            if _are_rows(partials, part, along, row_points(order)):
                yield {**point, **_cut(part, along, _flat(order))}
        return
    if len(first.rows) != 2:
        return
    for along, (whole, size) in permutations(inner):
        for row, (other, others) in permutations(first.rows):
            same = as_expr(size) == as_expr(others)
            if same and _are_rows(partials, part, along, row_points([row])):
                yield {**point, **_cut(part, along, as_expr(row[0])), whole: as_expr(other)}


def _are_rows(partials: Sequence[_Partial], part: Loop, along: Loop, rows: int | None) -> bool:
    """Whether so many rows are all that the sums have: parts of one length hold more than that, of
    which a condition leaves the last ones out."""
    most, place = row_points([part, along]), as_expr(part[0]) * along[1] + along[0]
    if most is None or rows is None or rows > most:
        return False
    return all(_end(partial.fold.body, place, most) <= rows for partial in partials)


def _end(body: Scalar, place: Expr, most: int) -> int:
    """Behind which place of a sum nothing is added."""
    while isinstance(body, Cast):
        body = body.operand
    if not isinstance(body, Guarded) or body.other != literal(0, body.dtype):
        return most
    condition = body.condition
    if not isinstance(condition, Apply) or condition.op != "lt":
        return most
    left, right = condition.operands
    if isinstance(right, Literal) and left == Index(place):
        return min(int(right.value), most)
    return most


def _cut(part: Loop, along: Loop, row: Expr) -> _Places:
    """Where a row is: in which part, and where of it."""
    length = along[1]
    return {part[0]: floor_div(row, length), along[0]: modulo(row, length)}


def _flat(rows: Sequence[Loop]) -> Expr:
    """The number of a row, of axes in that order."""
    number = as_expr(0)
    for symbol, size in rows:
        number = number * size + as_expr(symbol)
    return number


def _at(first: Kernel, partial: _Partial, places: _Places) -> _Partial | None:
    """The sum by the first's symbols; None where it reads what the first writes elsewhere than it
    is written: other threads have that."""
    stores: dict[Buffer, list[Store]] = {}
    for statement in statements_of(first):
        if isinstance(statement, Store):
            stores.setdefault(statement.target, []).append(statement)
    fold = partial.fold
    body = substitute_symbols(cast(fold.body, fold.dtype), places)
    where: dict[Load, Load] = {}
    for load in loads(body):
        made = stores.get(load.buffer)
        if made is None:
            continue
        store = made[0]
        if len(made) > 1 or _offset(load) != offset(store.target, store.coordinates):
            return None
        where[load] = replace(load, coordinates=store.coordinates)

    def found(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        if isinstance(node, Load):
            return where.get(node, node)
        return replace_children(node, below)

    return replace(partial, fold=replace(fold, body=rebuild(body, found)))


def _offset(load: Load) -> Expr | None:
    """None for what is looked up."""
    if any(not isinstance(c, Expr) for c in load.coordinates):
        return None
    return offset(load.buffer, load.coordinates)


def _met(first: Kernel, partials: Sequence[_Partial]) -> int:
    """How many of the places of matrices that sums read the first kernel reads or writes, too."""
    known: set[tuple[Buffer, Expr | None]] = set()
    for statement in statements_of(first):
        known |= {(load.buffer, _offset(load)) for load in loads(scalar_of(statement))}
        if isinstance(statement, Store):
            known.add((statement.target, offset(statement.target, statement.coordinates)))
    read = {
        (load.buffer, _offset(load))
        for partial in partials
        for load in loads(partial.fold.body)
        if len(load.buffer.shape) > 1
    }
    return len(known & read)


def _with_columns(
    first: Kernel, second: Kernel, sums: Sequence[_Partial], names: Names, wanted: int
) -> _Merged:
    """The first kernel with the second's sums, which are by its symbols."""
    ((_, points),) = first.phases[0].loops
    rows = row_points(first.rows) or 0
    if (constant_value(points) or 0) <= _SHORT_ROW:
        wanted *= 2
    block = first.block or max(_LEAST_BLOCK, -(-rows // wanted))
    tasks = -(-rows // block)
    columns, moved = [], {}
    for partial in sums:
        fold = partial.fold
        target = names.buffer(partial.target, (tasks, points), dtype=fold.dtype)
        moved[partial.target] = target
        columns.append(Column(target, fold.dtype, fold.body, fold.origin))
    others = [b for b in second.memory if b not in moved]
    memory = tuple(dict.fromkeys([*first.memory, *others, *moved.values()]))
    kernel = replace(first, memory=memory, columns=(*first.columns, *columns), block=block)
    return _Merged(kernel, moved, tasks)


def _totals(places: StepPlaces, made: _Merged, partials: set[Buffer]) -> dict[int, Step] | None:
    """The kernels that add up the partial sums, over the new parts; None where one does more."""
    found: dict[int, Step] = {}
    for number in places.touching(partials):
        step = places.steps[number]
        if step is None or partials & {*written(step)}:
            continue
        if not isinstance(step, Kernel) or len(step.phases) != 1 or len(step.phases[0].loops) != 1:
            return None
        ((symbol, _),) = step.phases[0].loops
        if not all(_adds_up(s, symbol, partials) for s in step.phases[0].body):
            return None
        found[number] = _over(step, symbol, made.tasks, made.moved)
    return found


def _adds_up(statement: Store | Accumulate, symbol: Symbol, partials: set[Buffer]) -> bool:
    """Whether a statement folds nothing but partial sums over their parts."""
    if not isinstance(statement, Accumulate) or statement.kind != "sum":
        return False
    read = list(loads(statement.body))
    return (
        len(read) == 1 and read[0].buffer in partials and read[0].coordinates[0] == as_expr(symbol)
    )


def _over(step: Kernel, symbol: Symbol, tasks: int, moved: Mapping[Buffer, Buffer]) -> Kernel:
    """The kernel with its loop over `tasks` parts in new buffers."""
    longer = Symbol(symbol.name, 0, tasks - 1)

    def replaced(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        if isinstance(node, Load) and node.buffer in moved:
            node = replace(node, buffer=moved[node.buffer])
        return replace_children(node, below)

    (phase,) = step.phases
    body = []
    for statement in phase.body:
        assert isinstance(statement, Accumulate)
        moved_body = substitute_symbols(
            rebuild(statement.body, replaced), {symbol: as_expr(longer)}
        )
        body.append(replace(statement, body=moved_body))
    memory = tuple(dict.fromkeys(moved.get(b, b) for b in step.memory))
    loops = ((longer, tasks),)
    return replace(step, phases=(replace(phase, loops=loops, body=tuple(body)),), memory=memory)
