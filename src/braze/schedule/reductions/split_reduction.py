"""Splits large reductions with few results into parallel partial reductions.

    y = sum(r0 < 1000000: x[r0])
becomes
    p[k] = sum(r0 < 15872: x[15872*k + r0])         with k < 63
    p[63] = sum(r0 < 64: x[999936 + r0])
    y = sum(r0 < 64: p[r0])

Where the target wants parts of one length, the last one is guarded instead:

    p[k] = sum(r0 < 16384: x[16384*k + r0] where 16384*k + r0 < 1000000, else 0)

A fold of everything whose points are rows, each with facts of its own (a loss of log-softmaxes), is
cut there into rows, and so shares the kernel of what makes these facts:

    y = sum(r0 < 8192, r1 < 50304: x[r0, r1] - m[r0])  ->  p[k] = sum(r1 < 50304: x[k, r1] - m[k])

How it is cut depends on sizes alone, so that the result does not depend on the thread count.
Left alone: argmax and argmin, and reductions with results enough for all threads; symbolic sizes,
where parts are not padded.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from braze.ir.kernels.loops import Buffer, Definition, Guarded, Load, Reduce, Scalar
from braze.ir.kernels.scalars import apply, cast, index, literal, substitute_symbols
from braze.ir.types import Size
from braze.schedule.analysis.cost import estimated
from braze.schedule.analysis.strides import best_vector_axis, load_walks
from braze.schedule.simplify.flatten_reduction_axes import flattened
from braze.schedule.simplify.normalize import Names
from braze.schedule.target import Target
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, floor_div, simplified

_LANES = 64
_PADDED_TO = 1024  # the length of guarded parts is a multiple
_TRIED = 4096  # lengths of parts
_LEAST_ROW, _MOST_ROWS = 512, 1 << 15  # of a fold of everything that is cut into rows


def split(
    definition: Definition, names: Names, over_lanes: bool, target: Target
) -> list[Definition]:
    """The definition, or its partial reductions and their reduction.

    over_lanes: the last axis, not a reduced one, will be the vectorised loop.
    """
    body = definition.body
    if not isinstance(body, Reduce) or body.kind in ("argmax", "argmin"):
        return [definition]
    results = estimated(size for _, size in definition.axes)
    work = results * estimated(size for _, size in body.axes)
    tasks = -(-results // _LANES) if over_lanes else results
    if tasks >= target.enough_tasks:
        return [definition]
    if target.pads_parts:
        if over_lanes:
            definition = flattened(definition, names)
        return _split_padded(definition, results, work, tasks, names, target, over_lanes)
    symbol, length = _axis_to_cut(body, target.enough_tasks)
    if work < target.least_work or length < 4:
        return [definition]
    parts = min(target.most_parts, max(2, work // target.least_part), length)
    part = -(-length // parts)
    if part * (work // length) > 16:
        part = _rounded(part, length)
    return _cut(definition, body, symbol, length, part, names)


# --- private ---------------------------------------------------------------------------------


def _axis_to_cut(body: Reduce, enough: int) -> tuple[Symbol, int]:
    """The outermost axis that makes parts enough, or the longest; (symbol, 0) if symbolic."""
    known = [(symbol, constant_value(size) or 0) for symbol, size in body.axes]
    long = [axis for axis in known if axis[1] >= enough]
    return long[0] if long else max(known, key=lambda axis: axis[1])


def _rounded(part: int, length: int) -> int:
    return min(-(-part // 64) * 64, length) if part > 256 else part


def _cut(
    definition: Definition, body: Reduce, symbol: Symbol, length: int, part: int, names: Names
) -> list[Definition]:
    whole, rest = divmod(length, part)
    count = whole + bool(rest)
    if count == 1:
        return [definition]
    sizes = tuple(size for _, size in definition.axes)
    partial = names.buffer(definition.target, (count, *sizes), dtype=body.dtype)
    kept = tuple(as_expr(s) for s, _ in definition.axes)
    made = []
    if whole:
        k = names.symbol("k", whole)
        inner = names.symbol("s", part)
        piece = _piece(body, symbol, as_expr(inner) + as_expr(k) * part, (inner, part))
        axes = ((k, whole), *definition.axes)
        made.append(Definition(partial, axes, (as_expr(k), *kept), piece, definition.origin))
    if rest:
        inner = names.symbol("s", rest)
        piece = _piece(body, symbol, as_expr(inner) + whole * part, (inner, rest))
        store = (as_expr(whole), *kept)
        made.append(Definition(partial, definition.axes, store, piece, definition.origin))
    return [*made, _total(definition, body, partial, count, names)]


def _split_padded(
    definition: Definition,
    results: int,
    work: int,
    tasks: int,
    names: Names,
    target: Target,
    over_lanes: bool,
) -> list[Definition]:
    """The definition, or partial reductions over parts of one length and their reduction."""
    body = definition.body
    assert isinstance(body, Reduce)
    rows = _rows(body, target) if results == 1 and work >= target.least_work else None
    if rows is not None:
        return _by_rows(definition, body, rows, names)
    symbol, size = max(body.axes, key=lambda axis: estimated([axis[1]]))
    length = constant_value(size)
    if length is None:
        parts: int = max(2, min(target.most_parts, target.enough_tasks // max(tasks, 1)))
        part: Expr = floor_div(as_expr(size) + (parts - 1), parts)
    else:
        whole = results == 1 and symbol == body.axes[0][0]
        usual = target.lane_part_tasks if over_lanes else target.part_tasks
        wanted = (target.whole_part_tasks if whole else usual) // max(tasks, 1)
        parts = min(target.most_parts, wanted, work // max(tasks, 1) // target.least_part, length)
        if work < target.least_work or parts < 2:
            return [definition]
        step = -(-length // parts)
        if over_lanes:
            step = _dividing(length, step)
        elif step > 2 * _PADDED_TO:
            step = -(-step // _PADDED_TO) * _PADDED_TO
        parts, part = -(-length // step), as_expr(step)
    sizes = tuple(n for _, n in definition.axes)
    partial = names.buffer(definition.target, (parts, *sizes), dtype=body.dtype)
    k, inner = names.symbol("k", parts), names.symbol("s", simplified(part))
    at = as_expr(k) * part + inner
    piece = _piece(body, symbol, at, (inner, simplified(part)))
    if length is None or length % (constant_value(part) or 1):
        inside = apply("lt", index(at), index(as_expr(size)))
        piece = replace(piece, body=Guarded(inside, piece.body, _neutral(body)))
    kept = tuple(as_expr(s) for s, _ in definition.axes)
    axes = ((k, parts), *definition.axes)
    first = Definition(partial, axes, (as_expr(k), *kept), piece, definition.origin)
    return [first, _total(definition, body, partial, parts, names)]


def _rows(body: Reduce, target: Target) -> Symbol | None:
    """The axis of a fold of everything whose rows are parts: one that makes parts enough, of which
    each walks through memory. What else is folded of these rows is then of the same kernel."""
    unit = best_vector_axis([symbol for symbol, _ in body.axes], load_walks(body.body))
    lengths = [(symbol, constant_value(size) or 0) for symbol, size in body.axes]
    work = math.prod(length for _, length in lengths)
    for symbol, length in lengths:
        if symbol != unit and target.enough_tasks <= length <= _MOST_ROWS:
            return symbol if work // length >= _LEAST_ROW else None
    return None


def _by_rows(
    definition: Definition, body: Reduce, symbol: Symbol, names: Names
) -> list[Definition]:
    """The folds of the rows along an axis, and theirs."""
    sizes = dict(body.axes)
    count = constant_value(sizes[symbol]) or 0
    k = names.symbol("k", count)
    inside = substitute_symbols(body.body, {symbol: as_expr(k)})
    rest = tuple([(other, size) for other, size in body.axes if other != symbol])
    partial = names.buffer(definition.target, (count,), dtype=body.dtype)
    piece = Reduce(body.kind, rest, inside, body.dtype)
    first = Definition(partial, ((k, count),), (as_expr(k),), piece, definition.origin)
    return [first, _total(definition, body, partial, count, names)]


def _dividing(length: int, step: int) -> int:
    """A length that parts may have without a rest, not much longer than `step`; else `step`."""
    most = min(step + step // 2, step + _TRIED, length)
    return next((n for n in range(step, most + 1) if length % n == 0), step)


def _neutral(body: Reduce) -> Scalar:
    """What a fold of the kind may take and be the same."""
    dtype = body.body.dtype
    if body.kind in ("sum", "any"):
        return literal(0, dtype)
    if body.kind in ("prod", "all"):
        return literal(1, dtype)
    if dtype.is_floating_point:
        return literal(-math.inf if body.kind == "max" else math.inf, dtype)
    if dtype == torch.bool:
        return literal(body.kind == "min", dtype)
    information = torch.iinfo(dtype)
    return literal(information.min if body.kind == "max" else information.max, dtype)


def _piece(body: Reduce, symbol: Symbol, place: Expr, axis: tuple[Symbol, Size]) -> Reduce:
    inside = substitute_symbols(body.body, {symbol: place})
    axes = tuple(axis if s == symbol else (s, size) for s, size in body.axes)
    return Reduce(body.kind, axes, inside, body.dtype)


def _total(
    definition: Definition, body: Reduce, partial: Buffer, count: int, names: Names
) -> Definition:
    k = names.symbol("k", count)
    kept = tuple(as_expr(s) for s, _ in definition.axes)
    load: Scalar = Load(partial, (as_expr(k), *kept))
    wide = torch.float64 if body.dtype == torch.float32 else body.dtype
    total = Reduce(body.kind, ((k, count),), cast(load, wide), wide)
    return replace(definition, body=cast(total, body.dtype))
