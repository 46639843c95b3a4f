"""Finds which coordinate of a value is the row of a dynamic size.

    dimension 2*s0, rows (outer 2, inner 1):      coordinate i0*s0 + i1, i1 < s0     row i1
    dimension 12*s0, rows (outer 1, inner 12):    coordinate 12*i0 + i1, i1 < 12     row i0
    buffer [2, s0, 32], seen as [2*s0, 32]:       rows (outer 2, inner 1) of its first dimension

A row is a symbol here, or none for row zero, which every call has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

from braze.frozen import frozen
from braze.ir.kernels.loops import BufferView
from braze.ir.kernels.padding import Rows
from braze.ir.types import Size
from braze.shapes.expr import (
    ZERO,
    Expr,
    Symbol,
    as_expr,
    bounds,
    constant_value,
    floor_div,
    symbols,
)
from braze.shapes.prove import is_nonnegative
from braze.shapes.substitution import substitute

ONE = as_expr(1)


class Dependent(Exception):
    """Rows are not computed each by itself; the text says what stands against it."""


def split_by(value: Size, symbol: Symbol) -> tuple[Expr, Expr] | None:
    """(factor, rest) with value == factor * symbol + rest, both without the symbol, or None."""
    factor, rest = ZERO, ZERO
    for monomial, coefficient in as_expr(value).terms:
        term = Expr(((monomial, coefficient),))
        if symbol not in symbols(term):
            rest = rest + term
            continue
        others = list(monomial)
        if symbol not in others:
            return None
        others.remove(symbol)
        term = Expr(((tuple(others), coefficient),))
        if symbol in symbols(term):
            return None
        factor = factor + term
    return factor, rest


def multiplicity(size: Size, symbol: Symbol) -> Expr | None:
    """The factor of a size that is a multiple of the symbol; None for any other size with it."""
    found = split_by(size, symbol)
    return found[0] if found is not None and not found[1].terms else None


def factorisations(count: Expr) -> list[tuple[Expr, Expr]]:
    """(outer, inner) of dimensions with so many elements a row."""
    if constant_value(count) == 1:
        return [(ONE, ONE)]
    found = [(ONE, count), (count, ONE)]
    number = constant_value(count)
    if number is not None:
        found += [
            (as_expr(n), as_expr(number // n)) for n in range(2, min(number, 65)) if not number % n
        ]
    return found


def quotient(value: Expr, divisor: Expr) -> Expr | None:
    """value / divisor where that is exact."""
    if constant_value(divisor) == 1 or not value.terms:
        return value
    found = floor_div(value, divisor)
    return found if found * divisor == value else None


def is_below(value: Expr, end: Expr, extents: Mapping[Symbol, Size]) -> bool:
    """Whether 0 <= value < end for all points of the loops. extents: of the loops' symbols."""
    if not value.terms and constant_value(end) == 1:
        return True
    low, high = bounds(value)
    most, number = end - 1, constant_value(end)
    if low is not None and low >= 0 and high is not None and number is not None and high < number:
        return True
    plain = all(
        coefficient > 0 and all(type(atom) is Symbol for atom in monomial)
        for monomial, coefficient in value.terms
    )
    if not plain:
        return False
    largest = {s: as_expr(extents[s]) - 1 for s in symbols(value) if s in extents}
    others = [s for s in symbols(value) if s not in extents]
    if any(s.lower is None or s.lower < 0 for s in others):
        return False
    return is_nonnegative(most - substitute(value, largest), {})


def row_of(
    coordinate: Expr, size: Symbol, row: Symbol, rows: Rows, extents: Mapping[Symbol, Size]
) -> bool:
    """Whether a coordinate is of that row (True) or of row zero (False). Raises Dependent."""
    parts = split_by(coordinate, size)
    inside = None if parts is None else split_by(parts[1], row)
    if parts is None or inside is None:
        raise Dependent(f"a coordinate is {coordinate}")
    outer, (step, rest) = parts[0], inside
    if row in symbols(outer) or quotient(outer, rows.inner) is None:
        raise Dependent(f"a coordinate is {coordinate}")
    if not is_below(rest, rows.inner, extents):
        raise Dependent(f"another row is read: {coordinate}")
    if not step.terms:
        return False
    if step != rows.inner:
        raise Dependent(f"another row is read: {coordinate}")
    return True


@final
@frozen
class Seen:
    """A view among a library call's arguments: its rows, or None where all of it is the same at
    every size. anywhere: each row is the same, however they are counted."""

    view: BufferView
    rows: Rows | None
    anywhere: bool = False

    @property
    def dims(self) -> int:
        """How many dimensions it has."""
        return len(self.view.shape)

    def has_rows(self, dim: int) -> bool:
        """Whether its rows are in that dimension."""
        return self.rows is not None and self.rows.dim == dim


def seen(view: BufferView, size: Symbol, rows: Rows | None) -> Seen:
    """The rows of a view of a buffer that has those rows. Raises Dependent."""
    buffer = view.buffer
    sized = [n for n, length in enumerate(view.shape) if size in symbols(length)]
    if len(sized) > 1:
        raise Dependent(f"{size} is the size of two dimensions")
    if rows is None:
        return _seen_of_fixed(view, size, sized)
    if view.dtype != buffer.dtype:
        raise Dependent("memory is read as another dtype")
    memory = _BufferAddresses.of(view, size, rows)
    found = None
    for dim, (length, stride) in enumerate(zip(view.shape, view.stride, strict=True)):
        if constant_value(length) == 1:
            continue
        if dim in sized:
            found = memory.rows_at(dim, length, stride)
        else:
            memory.note(length, stride)
    memory.check()
    return Seen(view, found)


# --- private ---------------------------------------------------------------------------------


def _seen_of_fixed(view: BufferView, size: Symbol, sized: list[int]) -> Seen:
    """A view of what has no rows: the same for all of them where it is expanded."""
    for dim in sized:
        if constant_value(view.stride[dim]) != 0:
            raise Dependent(f"{size} elements are taken of what has more")
    others = [*(s for n, s in enumerate(view.stride) if n not in sized), view.offset]
    others += [length for n, length in enumerate(view.shape) if n not in sized]
    if any(size in symbols(one) for one in others):
        raise Dependent(f"{size} says what is read")
    if not sized:
        return Seen(view, None)
    count = multiplicity(view.shape[sized[0]], size)
    if count is None:
        raise Dependent(f"a size is {view.shape[sized[0]]}")
    return Seen(view, Rows(sized[0], ONE, count), anywhere=True)


@final
class _BufferAddresses:
    """Addresses of a buffer as (what is outside of rows, the row, what is inside of one).

    step: from a row to the next. Strides without the size stay inside of a row: the largest of
    them together is less than a step; those with it are multiples of all rows' steps.
    """

    def __init__(self, size: Symbol, step: Expr, offset: Expr) -> None:
        self.size, self.step, self.inside = size, step, offset

    @classmethod
    def of(cls, view: BufferView, size: Symbol, rows: Rows) -> _BufferAddresses:
        """Of a view; raises Dependent where addresses do not tell rows apart."""
        buffer = view.buffer
        unit = as_expr(buffer.stride[rows.dim])
        if size in symbols(unit) or not unit.terms:
            raise Dependent("rows are not told apart by where they are")
        whole = cls(size, unit * rows.inner, ZERO)
        whole.note(rows.inner, unit)
        for dim, (length, stride) in enumerate(zip(buffer.shape, buffer.stride, strict=True)):
            if dim != rows.dim:
                whole.note(length, stride)
        whole.check()
        parts = split_by(view.offset, size)
        if parts is None or quotient(parts[0], whole.step) is None:
            raise Dependent(f"a view begins at {view.offset}")
        return cls(size, whole.step, parts[1])

    def note(self, length: Size, stride: Size) -> None:
        """A dimension beside the rows."""
        if constant_value(length) == 1:
            return
        parts = split_by(stride, self.size)
        if parts is None or (parts[0].terms and parts[1].terms):
            raise Dependent(f"a stride is {stride}")
        if parts[0].terms:
            if quotient(parts[0], self.step) is None:
                raise Dependent(f"a stride is {stride}")
            return
        low, _ = bounds(parts[1])
        if low is None or low < 0:
            raise Dependent(f"a stride is {stride}")
        self.inside = self.inside + (as_expr(length) - 1) * parts[1]

    def rows_at(self, dim: int, length: Size, stride: Size) -> Rows:
        """The rows of a dimension that has the size."""
        count = multiplicity(length, self.size)
        if count is None:
            raise Dependent(f"a size is {length}")
        for outer, inner in factorisations(count):
            if inner * stride == self.step:
                self.note(inner, stride)
                return Rows(dim, outer, inner)
        raise Dependent("rows are read in another order")

    def check(self) -> None:
        """Raises Dependent unless what is inside of a row stays there."""
        low, _ = bounds(self.inside)
        if low is None or low < 0 or not is_nonnegative(self.step - 1 - self.inside, {}):
            raise Dependent("a view is of several rows at once")


def fills_memory(view: BufferView) -> bool:
    """Whether the view has each element of its buffer once, in whatever order."""
    buffer = view.buffer
    if view.dtype != buffer.dtype or constant_value(view.offset) != 0:
        return False
    expanded = any(
        constant_value(stride) == 0 and constant_value(length) != 1
        for length, stride in (*zip(view.shape, view.stride), *zip(buffer.shape, buffer.stride))
    )
    return not expanded and _product(view.shape) == _product(buffer.shape)


def _product(sizes: Iterable[Size]) -> Expr:
    total = ONE
    for size in sizes:
        total = total * size
    return total
