"""Splits definitions so that each holds at most one reduction.

    y[i0, i1] = exp(x[i0, i1]) / sum(r0 < 8: exp(x[i0, r0]))     with i0 < 4, i1 < 1
becomes
    a0[i0] = sum(r0 < 8: exp(x[i0, r0]))
    y[i0, 0] = exp(x[i0, 0]) / a0[i0]

Axes of size one are replaced by zero. A reduction over no points but one becomes its body.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from braze.frozen import frozen
from braze.ir.kernels.loops import Apply, Buffer, Cast, Definition, Literal, Load, Reduce, Scalar
from braze.ir.kernels.scalars import cast, rebuild, replace_children, substitute_symbols
from braze.shapes.expr import ZERO, Expr, Symbol, as_expr, constant_value
from braze.shapes.substitution import substitute


@frozen
class Names:
    """Fresh names for one schedule."""

    buffers: Iterator[int]
    symbols: Iterator[int]

    def buffer(self, like: Buffer, shape: tuple[int | Expr, ...], **changes: Any) -> Buffer:
        """A new contiguous buffer on the device of `like`."""
        stride: list[int | Expr] = []
        step: int | Expr = 1
        for size in reversed(shape):
            stride.append(step)
            step = step * size
        made = Buffer(f"t{next(self.buffers)}", like.dtype, shape, tuple(stride[::-1]), like.device)
        return replace(made, **changes)

    def symbol(self, prefix: str, size: int | Expr) -> Symbol:
        """A new index symbol over [0, size)."""
        limit = constant_value(size)
        upper = None if limit is None else limit - 1
        return Symbol(f"{prefix}{next(self.symbols)}", 0, upper)


def new_names() -> Names:
    """Names for a new schedule."""
    return Names(itertools.count(), itertools.count())


def normalise(definition: Definition, names: Names) -> list[Definition]:
    """The definition without axes of size one, its reductions in definitions of their own."""
    definition = _drop_unit_axes(definition)
    if isinstance(definition.body, Reduce):
        simple = _drop_unit_reduction(definition.body)
        if simple is not definition.body:
            return normalise(replace(definition, body=simple), names)
        return [definition] if _covers_axes(definition) else _extract(definition, names)
    return _extract(definition, names)


# --- private ---------------------------------------------------------------------------------


def _covers_axes(definition: Definition) -> bool:
    return len(definition.axes) == sum(c != ZERO for c in definition.store)


def _drop_unit_axes(definition: Definition) -> Definition:
    units = {symbol: ZERO for symbol, size in definition.axes if constant_value(size) == 1}
    if not units:
        return definition
    return replace(
        definition,
        axes=tuple(axis for axis in definition.axes if axis[0] not in units),
        store=tuple(substitute(c, units) for c in definition.store),
        body=substitute_symbols(definition.body, units),
    )


def _drop_unit_reduction(reduction: Reduce) -> Scalar:
    units = {symbol: ZERO for symbol, size in reduction.axes if constant_value(size) == 1}
    kept = tuple(axis for axis in reduction.axes if axis[0] not in units)
    if len(kept) == len(reduction.axes) and kept:
        return reduction
    body = substitute_symbols(reduction.body, units) if units else reduction.body
    if kept:
        return Reduce(reduction.kind, kept, body, reduction.dtype)
    if reduction.kind in ("argmax", "argmin"):
        return Literal(0, reduction.dtype)
    return cast(body, reduction.dtype)


def _extract(definition: Definition, names: Names) -> list[Definition]:
    made: list[Definition] = []
    shape = tuple(size for _, size in definition.axes)
    store = tuple(as_expr(symbol) for symbol, _ in definition.axes)

    def extract(scalar: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        if isinstance(scalar, Reduce):
            simple = _drop_unit_reduction(scalar)
            if not isinstance(simple, Reduce):
                return simple
            target = names.buffer(definition.target, shape, dtype=simple.dtype)
            made.append(Definition(target, definition.axes, store, simple, definition.origin))
            return Load(target, store)
        return replace_children(scalar, below) if isinstance(scalar, (Apply, Cast)) else scalar

    body = rebuild(definition.body, extract)
    return [*made, definition if body is definition.body else replace(definition, body=body)]
