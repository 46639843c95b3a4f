"""Splits large values of which only a small part has a late reader; only that part is kept.

    g[c] = e                              g[c] = e
    y[c] = f(g[c])        c < 64          y[c] = f(g[c])
    ...                            ->     t[c] = g[c + 64]
    z[c] = h(g[c + 64])   c < 32          ...
                                          z[c] = h(t[c])

The gradient of what a skip connection joined is read in two parts: one at once, the other when
the backward comes to where the connection began, behind the peak of memory.

Left alone: what is not alive at the peak, results of the program counted; what a library call or
an element that is not known before reads there; parts larger than what is given back for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from braze.ir.kernels.loops import Buffer, Definition, Load, LoopProgram, Scalar, Statement
from braze.ir.kernels.scalars import expressions, loads, rebuild, replace_children
from braze.schedule.memory.rematerialize import Lives
from braze.schedule.simplify.normalize import Names
from braze.shapes.expr import Expr, as_expr, bounds, constant_value

_LEAST_PEAK = 1 << 22  # bytes: below, memory is no matter
_LEAST = 1 << 16


def keep_parts(
    program: LoopProgram, statements: Sequence[Statement], names: Names
) -> list[Statement]:
    """The statements, with such parts copied behind what else reads the values."""
    lives = Lives(program, statements)
    peak, most = lives.peak(with_results=True)
    if most < _LEAST_PEAK:
        return list(statements)
    kept: dict[Buffer, tuple[Buffer, tuple[int, ...]]] = {}
    copies: dict[int, list[Definition]] = {}
    for buffer, places in lives.made.items():
        if lives.size(buffer) < _LEAST or places[-1] > peak or not lives.waits(buffer, peak):
            continue
        read = lives.read[buffer]
        region = _region(buffer, [statements[number] for number in read if number > peak])
        if region is None:
            continue
        low, shape = region
        part = _part(buffer, shape, names)
        if part is not None and 2 * lives.size(part) <= lives.size(buffer):
            kept[buffer] = part, low
            behind = max(number for number in read if number <= peak)
            copies.setdefault(behind, []).append(_copy(buffer, part, low, names))
    late = {number for buffer in kept for number in lives.read[buffer] if number > peak}
    made: list[Statement] = []
    for number, statement in enumerate(statements):
        made.append(_reading(statement, kept) if number in late else statement)
        made += copies.get(number, ())
    return made


# --- private ---------------------------------------------------------------------------------


def _region(
    buffer: Buffer, readers: Iterable[Statement]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The first element and the size of what the readers read, where that is known."""
    ranges: list[list[tuple[int, int]]] = []
    for reader in readers:
        if not isinstance(reader, Definition):
            return None
        for load in _loads_of(buffer, reader):
            found = [_range(at) for at in load.coordinates]
            known = [one for one in found if one is not None]
            if len(known) < len(found):
                return None
            ranges.append(known)
    low = tuple(min(one[0] for one in dimension) for dimension in zip(*ranges, strict=True))
    high = tuple(max(one[1] for one in dimension) for dimension in zip(*ranges, strict=True))
    sizes = [constant_value(size) for size in buffer.shape]
    for first, last, size in zip(low, high, sizes, strict=True):
        if size is None or first < 0 or last >= size:  # only behind a condition
            return None
    return low, tuple(last - first + 1 for first, last in zip(low, high, strict=True))


def _loads_of(buffer: Buffer, definition: Definition) -> Iterator[Load]:
    return (load for load in loads(definition.body) if load.buffer == buffer)


def _range(coordinate: Expr | Scalar) -> tuple[int, int] | None:
    if not isinstance(coordinate, Expr):
        return None
    low, high = bounds(coordinate)
    return None if low is None or high is None else (low, high)


def _part(buffer: Buffer, shape: tuple[int, ...], names: Names) -> Buffer | None:
    """A buffer of that shape, its dimensions in the same order in memory."""
    steps = [constant_value(step) for step in buffer.stride]
    if any(step is None for step in steps):
        return None
    stride, step = [0] * len(shape), 1
    for dimension in sorted(range(len(shape)), key=lambda d: (steps[d] or 0, -d)):
        stride[dimension] = step
        step *= shape[dimension]
    return names.buffer(buffer, shape, stride=tuple(stride))


def _copy(buffer: Buffer, part: Buffer, low: tuple[int, ...], names: Names) -> Definition:
    axes = [(names.symbol("p", size), size) for size in part.shape]
    # As normalised definitions are: no axis of size one.
    place = tuple(as_expr(0 if size == 1 else symbol) for symbol, size in axes)
    over = tuple((symbol, size) for symbol, size in axes if size != 1)
    where = tuple(at + first for at, first in zip(place, low, strict=True))
    return Definition(part, over, place, Load(buffer, where))


def _reading(statement: Statement, kept: dict[Buffer, tuple[Buffer, tuple[int, ...]]]) -> Statement:
    """The definition, which reads parts."""
    assert isinstance(statement, Definition)

    def moved(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        found = replace_children(node, below)
        if isinstance(found, Load) and found.buffer in kept:
            part, low = kept[found.buffer]
            at = zip(expressions(found.coordinates), low, strict=True)
            there = tuple(place - first for place, first in at)
            return replace(found, buffer=part, coordinates=there)
        return found

    return replace(statement, body=rebuild(statement.body, moved))
