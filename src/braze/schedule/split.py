"""Large reductions to few results, in parallel.

    y = sum(r0 < 1000000: x[r0])
becomes
    p[k] = sum(r0 < 15872: x[15872*k + r0])         with k < 63
    p[63] = sum(r0 < 64: x[999936 + r0])
    y = sum(r0 < 64: p[r0])

How it is cut depends on sizes alone, so that the result does not depend on the thread count.
Left alone: argmax and argmin, symbolic sizes, and reductions with results enough for all threads.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from braze.ir.loops import Buffer, Definition, Load, Reduce, Scalar
from braze.ir.scalars import cast, substitute_symbols
from braze.schedule.cost import estimated
from braze.schedule.normalise import Names
from braze.shapes.expr import Symbol, as_expr, constant_value

_ENOUGH_TASKS = 24
_PARTS = 64
_LEAST_WORK = 65536  # elements: below, one thread is faster than a second pass
_LEAST_PART = 4096
_LANES = 64


def split(definition: Definition, names: Names, over_lanes: bool) -> list[Definition]:
    """The definition, or its partial reductions and their reduction.

    over_lanes: the last axis, not a reduced one, will be the vectorised loop.
    """
    body = definition.body
    if not isinstance(body, Reduce) or body.kind in ("argmax", "argmin"):
        return [definition]
    results = estimated(size for _, size in definition.axes)
    work = results * estimated(size for _, size in body.axes)
    tasks = -(-results // _LANES) if over_lanes else results
    symbol, length = _axis_to_cut(body)
    if tasks >= _ENOUGH_TASKS or work < _LEAST_WORK or length < 4:
        return [definition]
    parts = min(_PARTS, max(2, work // _LEAST_PART), length)
    part = -(-length // parts)
    if part * (work // length) > 16:
        part = _rounded(part, length)
    return _cut(definition, body, symbol, length, part, names)


# --- private ---------------------------------------------------------------------------------


def _axis_to_cut(body: Reduce) -> tuple[Symbol, int]:
    """The outermost axis that makes parts enough, or the longest; (symbol, 0) if symbolic."""
    known = [(symbol, constant_value(size) or 0) for symbol, size in body.axes]
    long = [axis for axis in known if axis[1] >= _ENOUGH_TASKS]
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


def _piece(body: Reduce, symbol: Symbol, index: object, axis: tuple[Symbol, int]) -> Reduce:
    inside = substitute_symbols(body.body, {symbol: index})
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
