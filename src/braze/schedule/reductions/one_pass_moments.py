"""Computes mean and variance of few large groups in one pass over the data.

    s[c] = sum(n, i: x[n, c, i])
    m[c] = s[c] / N
    v[c] = sum(n, i: (x[n, c, i] - m[c]) ** 2)
becomes, over parts k of the outermost axis, which hold n' points each,
    p[k, c] = sum(points of k: x)
    q[k, c] = sum(points of k: (x - p[k, c] / n') ** 2)
    s[c] = sum(k: p[k, c])
    v[c] = sum(k: q[k, c] + n' * (p[k, c] / n' - m[c]) ** 2)

(Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983.) The parts are short
enough for registers, so p and q are one kernel that reads x once: a batch norm in training reads
its image twice, not three times. No m needs to be a mean: the identity holds for any. What is
squared is a distance to the part's own mean, so nothing cancels that did not before.

Where neighbours in memory are of different groups (channels innermost), registers hold a few
hundred rows of a block of groups: parts are shorter, and more groups are worth it.

Refused: sums that are not split since their groups are many enough, symbolic sizes, and parts
that would hold too few points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from braze.frozen import frozen
from braze.ir.kernels.loops import Apply, Buffer, Definition, Load, Reduce, Scalar, Statement
from braze.ir.kernels.scalars import apply, cast, literal, loads, substitute_symbols
from braze.schedule.analysis.cost import estimated
from braze.schedule.analysis.strides import reduces_over_lanes
from braze.schedule.simplify.flatten_reduction_axes import flattened
from braze.schedule.simplify.normalize import Names
from braze.schedule.target import Target
from braze.shapes.expr import ZERO, Expr, Symbol, as_expr, constant_value, symbols

_LEAST_POINTS = 1024  # of a part
_LEAST_ROWS = 32  # of a part whose points are rows of neighbouring groups
_LANES = 16  # groups that one program has at the least, there


@frozen
class SharedMoments:
    """final: targets of reductions that are not to be split any further."""

    statements: list[Statement]
    final: frozenset[Buffer]


def share_moments(
    statements: Sequence[Statement],
    names: Names,
    target: Target,
    whole: frozenset[Buffer] = frozenset(),
) -> SharedMoments:
    """The statements with such pairs of sums in parts that are read once. whole: targets of sums
    that are not to be split."""
    made = list(statements)
    final: set[Buffer] = set(whole)
    for first, second in _pairs(statements, target):
        if first.target in whole or second.target in whole:
            continue
        flat = (first, second)
        if _has_lanes(first, target):
            flat = (flattened(first, names), flattened(second, names))
        parts = _parts(flat[0], target)
        if parts is None:
            continue
        new = _Pieces.of(*flat, parts, names)
        at = made.index(first)
        made[at : at + 1] = [new.sums, new.squares, new.total]
        made[made.index(second)] = new.spread
        final |= {d.target for d in (new.sums, new.squares, new.total, new.spread)}
    return SharedMoments(made, frozenset(final))


# --- private ---------------------------------------------------------------------------------


def _pairs(
    statements: Sequence[Statement], target: Target
) -> Iterator[tuple[Definition, Definition]]:
    """Sums, and sums of squares about something of the same points; each once."""
    sums = [s for s in statements if isinstance(s, Definition) and _is_large_sum(s, target)]
    taken: set[Buffer] = set()
    for second in sums:
        deviation = _deviation(second)
        if deviation is None:
            continue
        for first in sums[: sums.index(second)]:
            free = first.target not in taken and second.target not in taken
            if free and _is_same_sum(first, second, deviation[0]):
                taken |= {first.target, second.target}
                yield first, second
                break


def _is_large_sum(definition: Definition, target: Target) -> bool:
    body = definition.body
    if not isinstance(body, Reduce) or body.kind != "sum" or body.dtype != torch.float32:
        return False
    known = all(constant_value(n) is not None for _, n in (*definition.axes, *body.axes))
    results = estimated(size for _, size in definition.axes)
    work = results * estimated(size for _, size in body.axes)
    places = [c for c in definition.store if c != ZERO]
    whole = places == [as_expr(symbol) for symbol, _ in definition.axes]
    if not (known and whole and work >= target.least_work):
        return False
    return results < target.enough_tasks * (_LANES if _has_lanes(definition, target) else 1)


def _has_lanes(definition: Definition, target: Target) -> bool:
    """Whether parts of neighbouring groups are held together."""
    return bool(target.lane_moment_points) and reduces_over_lanes(definition)


def _deviation(definition: Definition) -> tuple[Scalar, Load] | None:
    """(f, m) of a sum of (f - m) ** 2, where m is the same for all points of a group."""
    body = definition.body
    assert isinstance(body, Reduce)
    square = body.body
    if not (isinstance(square, Apply) and square.op == "mul"):
        return None
    gap, other = square.operands
    if gap != other or not (isinstance(gap, Apply) and gap.op == "sub"):
        return None
    value, centre = gap.operands
    if not isinstance(centre, Load) or centre.dtype != torch.float32:
        return None
    reduced = {symbol for symbol, _ in body.axes}
    places = [c for c in centre.coordinates if isinstance(c, Expr)]
    fixed = len(places) == len(centre.coordinates) and not any(
        symbols(place) & reduced for place in places
    )
    return (value, centre) if fixed else None


def _is_same_sum(first: Definition, second: Definition, value: Scalar) -> bool:
    """Whether the first adds up the second's f over the same points."""
    a, b = first.body, second.body
    assert isinstance(a, Reduce) and isinstance(b, Reduce)
    if any(load.buffer is first.target for load in loads(value)):
        return False
    sizes = [[as_expr(n) for _, n in (*d.axes, *r.axes)] for d, r in ((first, a), (second, b))]
    if sizes[0] != sizes[1] or len(first.axes) != len(second.axes):
        return False
    return a.body == substitute_symbols(value, _renaming(second, first))


def _renaming(source: Definition, wanted: Definition) -> dict[Symbol, Expr]:
    """The symbols of one definition -> those of the other."""
    assert isinstance(source.body, Reduce) and isinstance(wanted.body, Reduce)
    pairs = zip((*source.axes, *source.body.axes), (*wanted.axes, *wanted.body.axes), strict=True)
    return {old: as_expr(new) for (old, _), (new, _) in pairs}


@frozen
class _Parts:
    """An axis in `count` parts of `length`, each of so many points."""

    axis: int
    count: int
    length: int
    points: int


def _parts(definition: Definition, target: Target) -> _Parts | None:
    """The outermost axis that makes parts which registers hold."""
    body = definition.body
    assert isinstance(body, Reduce)
    sizes = [constant_value(size) or 0 for _, size in body.axes]
    results = estimated(size for _, size in definition.axes)
    everything = estimated(sizes)
    most, least, wanted = target.moment_points, _LEAST_POINTS, target.enough_tasks
    if _has_lanes(definition, target):
        most, least, wanted = target.lane_moment_points, _LEAST_ROWS, wanted * _LANES
    for axis, size in enumerate(sizes):
        others = everything // size
        room = most // others
        lengths = [n for n in range(1, min(size, room) + 1) if size % n == 0]
        fitting = [n for n in lengths if size // n * results >= wanted]
        if fitting and fitting[-1] * others >= least:
            length = fitting[-1]
            return _Parts(axis, size // length, length, length * others)
    return None


@frozen
class _Pieces:
    """p, q, s and v of the docstring."""

    sums: Definition
    squares: Definition
    total: Definition
    spread: Definition

    @staticmethod
    def of(first: Definition, second: Definition, parts: _Parts, names: Names) -> _Pieces:
        body = first.body
        assert isinstance(body, Reduce)
        k, inner = names.symbol("k", parts.count), names.symbol("s", parts.length)
        shape = (parts.count, *(size for _, size in first.axes))
        kept = tuple(as_expr(symbol) for symbol, _ in first.axes)
        axes, store = ((k, parts.count), *first.axes), (as_expr(k), *kept)
        cut, _ = body.axes[parts.axis]
        place = {cut: as_expr(k) * parts.length + inner}
        value = substitute_symbols(body.body, place)
        over = tuple((inner, parts.length) if s == cut else (s, n) for s, n in body.axes)

        def piece(value: Scalar) -> Definition:
            target = names.buffer(first.target, shape, dtype=body.dtype)
            return Definition(
                target, axes, store, Reduce("sum", over, value, body.dtype), first.origin
            )

        sums = piece(value)
        mean = apply("mul", Load(sums.target, store), 1 / parts.points)
        gap = apply("sub", value, mean)
        squares = piece(apply("mul", gap, gap))
        return _Pieces(
            sums,
            squares,
            _added(first, Load(sums.target, store), (k, parts.count)),
            _spread(first, second, (sums.target, squares.target), (k, parts)),
        )


def _added(definition: Definition, value: Scalar, axis: tuple[Symbol, int]) -> Definition:
    """The definition as a sum over parts, exact enough for any number of them."""
    total = Reduce("sum", (axis,), cast(value, torch.float64), torch.float64)
    return replace(definition, body=cast(total, torch.float32))


def _spread(
    first: Definition,
    second: Definition,
    partial: tuple[Buffer, Buffer],
    axis: tuple[Symbol, _Parts],
) -> Definition:
    (k, parts), kept = axis, tuple(as_expr(symbol) for symbol, _ in second.axes)
    sums, squares = (cast(Load(b, (as_expr(k), *kept)), torch.float64) for b in partial)
    deviation = _deviation(second)
    assert deviation is not None
    points = literal(float(parts.points), torch.float64)
    mean = apply("mul", sums, literal(1 / parts.points, torch.float64))
    gap = apply("sub", mean, cast(deviation[1], torch.float64))
    moved = apply("mul", apply("mul", gap, gap), points)
    return _added(second, apply("add", squares, moved), (k, parts.count))
