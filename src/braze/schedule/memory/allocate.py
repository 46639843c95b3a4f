"""Plans memory: an arena with offsets, where buffers with disjoint live ranges share bytes.

A buffer lives from the step that writes it first to the step that reads it last. Largest first,
each is put at the lowest offset where nothing alive at the same time lies.

Where sizes are symbols this is done for the sizes at hand, and what is kept of it is the order:
which of two buffers that are alive together lies before the other. Offsets then follow from any
sizes, and no two such buffers overlap.

An arena is there for the whole call, so that nothing else can lie where its buffers are done. Where
results grow as the arena empties (a training step's gradients, while what the forward left goes),
what is large has memory of its own instead, which goes back after its last reader.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import final

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, LoopProgram
from braze.ir.kernels.schedule import ALIGNMENT, ExternStep, Kernel, SizedSlot, Slot, Step
from braze.ir.types import Size
from braze.schedule.analysis.uses import extern_reads, may_alias
from braze.schedule.target import Target
from braze.shapes.binding import bind_symbols
from braze.shapes.expr import Symbol, constant_value, simplified, symbols
from braze.shapes.substitution import evaluate

_USUAL_SIZE = 64  # of a symbol that has no hint
_SMALL = 1 << 16  # bytes: lies in the arena in any case
_LEAST_ARENA = 1 << 22  # bytes: below, memory is no matter


@frozen
class Placement:
    """slots in the arena and its size in bytes, or where sizes are symbols, sized slots; and what
    is allocated at each call."""

    slots: tuple[tuple[Buffer, Slot], ...]
    arena_size: int
    sized: tuple[tuple[Buffer, SizedSlot], ...]
    fresh: tuple[Buffer, ...]
    last_use: tuple[tuple[Buffer, int], ...]


@final
@frozen
class Plannable:
    """Whether a buffer's size is known when a call begins.

    known: the symbols that inputs show, and what follows from them.
    """

    known: frozenset[Symbol]

    @classmethod
    def of(cls, program: LoopProgram, target: Target) -> Plannable:
        """What is known of a program's sizes, where the target plans with symbols."""
        if not target.plans_symbols:
            return cls(frozenset())
        shown = [n for buffer in program.inputs for n in (*buffer.shape, *buffer.stride)]
        numbers = [(None, n) for n in (*shown, *program.sizes.numbers)]
        bindings = bind_symbols(numbers, program.sizes.derived)
        return cls(frozenset([binding.symbol for binding in bindings]))

    def __call__(self, buffer: Buffer) -> bool:
        return all(symbols(n) <= self.known for n in (*buffer.shape, *buffer.stride))


@frozen
class _Life:
    """size: in bytes; about: an estimate of it."""

    buffer: Buffer
    size: Size
    about: int
    first: int
    last: int

    def meets(self, other: _Life) -> bool:
        return other.first <= self.last and self.first <= other.last


def place(program: LoopProgram, steps: Sequence[Step], target: Target) -> Placement:
    """Slots for the buffers that steps write and that nobody outside sees."""
    first, last = _lifetimes(steps)
    end = len(steps)
    for _, view in program.mutations:
        last[view.buffer] = end
    visible = {view.buffer for view in program.outputs} | _aliased_by_externs(steps)
    given = {*program.inputs, *(buffer for buffer, _ in program.constants)}
    plannable = Plannable.of(program, target)
    foreign = _allocated_by_externs(steps)  # kernels may scatter into it
    elsewhere = visible | given | foreign
    planned = [b for b in first if b not in elsewhere and plannable(b)]
    lives = [_life(b, first[b], last[b]) for b in planned]
    placed, total = _fit([life for life in lives if life.about <= target.planned_bytes])
    if target.shares_memory and _costs_more(total, lives, _others(steps, lives, given, visible)):
        placed, total = _fit([life for life in lives if life.about <= _SMALL])
    is_sized = any(_has_symbols(life.buffer) for life, _ in placed)
    slots = {} if is_sized else {life.buffer: Slot(at, life.about) for life, at in placed}
    sized = _ordered(placed) if is_sized else {}
    inside = slots.keys() | sized.keys() | given
    allocated = inside | foreign
    fresh = tuple(b for b in _written_by_kernels(steps) if b not in allocated)
    temporary = set(fresh) | (_written_by_externs(steps) - inside)
    temporary |= {*program.inputs} - {target for target, _ in program.mutations}
    temporary -= {view.buffer for view in program.outputs}
    drops = tuple((b, last[b]) for b in last if b in temporary and last[b] < end)
    size = 0 if is_sized else total
    return Placement(tuple(slots.items()), size, tuple(sized.items()), fresh, drops)


def size_of(buffer: Buffer) -> Size:
    """Bytes from the first to the last element; of a buffer of symbolic size that is empty, zero
    or less."""
    if 0 in map(constant_value, buffer.shape):
        return 0
    total: Size = 1
    for size, stride in zip(buffer.shape, buffer.stride):
        total = total + (size - 1) * stride
    return simplified(total * buffer.dtype.itemsize)


def _has_symbols(buffer: Buffer) -> bool:
    """Whether sizes or strides depend on symbols. Bytes do not say it: an empty buffer of shape
    [0, s1] has none, whatever s1 is, and views of it still have that shape."""
    return any(constant_value(n) is None for n in (*buffer.shape, *buffer.stride))


def written(step: Step) -> tuple[Buffer, ...]:
    """The buffers that a step gives contents."""
    if isinstance(step, ExternStep):
        return tuple(b for b in step.call.outputs if b is not None)
    stored = {s.target for phase in step.phases for s in (*phase.body, *phase.row)}
    stored |= {column.target for column in step.columns}
    if step.spread is not None:
        stored |= {step.spread.partials, step.spread.arrivals}
    return tuple(b for b in step.memory if b in stored)


def may_move(steps: Sequence[Step], early: int, late: int) -> bool:
    """Whether the later step, a kernel, may run at the place of the earlier one."""
    step = steps[late]
    assert isinstance(step, Kernel)
    between = {b for other in steps[early:late] for b in written(other)}
    touched = {b for other in steps[early:late] for b in memory_of(other)}
    return not between & {*step.memory} and not touched & {*written(step)}


def memory_of(step: Step) -> tuple[Buffer, ...]:
    """The buffers that a step reads or gives contents."""
    return step.memory if isinstance(step, Kernel) else tuple(extern_reads(step.call))


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


def _written_by_externs(steps: Sequence[Step]) -> set[Buffer]:
    return {b for step in steps if isinstance(step, ExternStep) for b in written(step)}


def _allocated_by_externs(steps: Sequence[Step]) -> set[Buffer]:
    calls = [step for step in steps if isinstance(step, ExternStep)]
    made = [call for call in calls if call.out_op is None and call.in_place_op is None]
    return {b for call in made for b in written(call)}


def _aliased_by_externs(steps: Sequence[Step]) -> set[Buffer]:
    """Arguments of operators whose results may be views of them."""
    found: set[Buffer] = set()
    for step in steps:
        if isinstance(step, ExternStep) and may_alias(step.call):
            found |= set(extern_reads(step.call))
    return found


def _life(buffer: Buffer, first: int, last: int) -> _Life:
    size = size_of(buffer)
    hints = {s: _USUAL_SIZE if s.hint is None else s.hint for s in symbols(size)}
    return _Life(buffer, size, max(0, evaluate(size, hints)), first, last)


def _fit(lives: Sequence[_Life]) -> tuple[list[tuple[_Life, int]], int]:
    """Each life with its offset, and the bytes of all, for the estimated sizes."""
    placed: list[tuple[_Life, int]] = []
    taken = _Taken(max((life.last for life in lives), default=0) + 1)
    total = 0
    for life in sorted(lives, key=lambda life: (-life.about, life.first)):
        at = 0
        if life.about:
            for start, stop in taken.between(life.first, life.last):
                if at + life.about <= start:
                    break
                at = max(at, stop)
            aligned = -(-(at + life.about) // ALIGNMENT) * ALIGNMENT
            taken.add(at, aligned, life.first, life.last)
        placed.append((life, at))
        total = max(total, at + life.about)
    return placed, total


@final
class _Ranges:
    """Bytes of an arena as ranges that do not touch, in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, start: int, stop: int) -> None:
        """Join a range with those that it touches."""
        low, high = bisect_left(self._stops, start), bisect_right(self._starts, stop)
        if low < high:
            start, stop = min(start, self._starts[low]), max(stop, self._stops[high - 1])
        self._starts[low:high] = [start]
        self._stops[low:high] = [stop]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops)


@final
class _Taken:
    """What is taken of an arena, and from which step to which: a segment tree over the steps.

    A life is entered at the O(log steps) nodes that together are its steps; a node has what is
    taken during all of its steps, and what is taken during any. Thousands of buffers that live at
    the same time (what a step's forward keeps for its backward) are few ranges there.
    """

    def __init__(self, steps: int) -> None:
        self._leaves = 1 << (steps - 1).bit_length()
        self._during_all: defaultdict[int, _Ranges] = defaultdict(_Ranges)
        self._during_any: defaultdict[int, _Ranges] = defaultdict(_Ranges)

    def add(self, start: int, stop: int, first: int, last: int) -> None:
        """Take the bytes from the step `first` to the step `last`, both included."""
        nodes = self._nodes(first, last)
        for node in nodes:
            self._during_all[node].add(start, stop)
        for above in {above for node in nodes for above in _path(node)}:
            self._during_any[above].add(start, stop)

    def between(self, first: int, last: int) -> list[tuple[int, int]]:
        """What is taken during at least one of these steps: ranges in order, which may overlap."""
        found: list[tuple[int, int]] = []
        for node in {*_path(first + self._leaves), *_path(last + self._leaves)}:
            if node in self._during_all:
                found += self._during_all[node]
        for node in self._nodes(first, last):
            if node in self._during_any:
                found += self._during_any[node]
        found.sort()
        return found

    def _nodes(self, first: int, last: int) -> list[int]:
        """The largest subtrees that together are these steps."""
        found, low, high = [], first + self._leaves, last + self._leaves + 1
        while low < high:
            if low & 1:
                found.append(low)
                low += 1
            if high & 1:
                high -= 1
                found.append(high)
            low, high = low >> 1, high >> 1
        return found


def _path(node: int) -> Iterator[int]:
    """A node of the tree and those above it."""
    while node:
        yield node
        node >>= 1


def _others(
    steps: Sequence[Step], lives: Sequence[_Life], given: set[Buffer], visible: set[Buffer]
) -> list[_Life]:
    """What else the steps make: results, which stay, and what extern calls allocate."""
    known = {life.buffer for life in lives} | given
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for number, step in enumerate(steps):
        for buffer in written(step):
            if buffer not in known:
                first.setdefault(buffer, number)
        for buffer in (*written(step), *memory_of(step)):
            last[buffer] = len(steps) if buffer in visible else number
    return [_life(buffer, number, last[buffer]) for buffer, number in first.items()]


def _costs_more(arena: int, lives: Sequence[_Life], others: Sequence[_Life]) -> bool:
    """Whether an arena beside all others takes a quarter more than what is ever alive."""
    if arena < _LEAST_ARENA or any(constant_value(life.size) is None for life in lives):
        return False
    return (arena + _most_alive(others)) * 4 > _most_alive([*lives, *others]) * 5


def _most_alive(lives: Iterable[_Life]) -> int:
    """Bytes that are alive at the same time, at most."""
    changes: Counter[int] = Counter()
    for life in lives:
        changes[life.first] += life.about
        changes[life.last + 1] -= life.about
    return max(accumulate(changes[number] for number in sorted(changes)), default=0)


def _ordered(placed: Sequence[tuple[_Life, int]]) -> dict[Buffer, SizedSlot]:
    """Slots by what lies before them: of those alive at the same time, all of a lower offset that
    are not before one of these already."""
    lives = [life for life, _ in sorted(placed, key=lambda pair: pair[1])]
    found: dict[Buffer, SizedSlot] = {}
    before: list[set[int]] = []
    for number, life in enumerate(lives):
        met = {place for place in range(number) if lives[place].meets(life)}
        passed: set[int] = set().union(*(before[place] for place in met))
        before.append(met | passed)
        found[life.buffer] = SizedSlot(life.size, tuple(sorted(met - passed)))
    return found
