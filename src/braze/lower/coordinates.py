"""Arithmetic on coordinates: index expressions, or int64 scalars where an index was gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from braze.ir.kernels.loops import Scalar
from braze.ir.kernels.scalars import apply, index
from braze.ir.types import Size, known_sizes
from braze.shapes.expr import (
    ZERO,
    Expr,
    Symbol,
    as_expr,
    bounds,
    constant_value,
    floor_div,
    modulo,
)

Coordinate: TypeAlias = Expr | Scalar
Coordinates: TypeAlias = tuple[Coordinate, ...]
CoordinateMap: TypeAlias = Callable[[Coordinates], Coordinates]
Axes: TypeAlias = tuple[tuple[Symbol, Size], ...]


@lru_cache(maxsize=4096)
def axis_symbol(prefix: str, position: int, size: Size) -> Symbol:
    """The symbol of one axis, its range [0, size)."""
    _, greatest = bounds(size)
    return Symbol(f"{prefix}{position}", 0, None if greatest is None else max(greatest - 1, 0))


def make_axes(prefix: str, sizes: Sequence[Size]) -> Axes:
    """One symbol a size: i0, i1, ... (or another prefix)."""
    # Symbolic sizes of another program may be equal and have other hints.
    known = all(type(size) is int for size in sizes)
    return _kept_axes(prefix, tuple(sizes)) if known else _axes(prefix, tuple(sizes))


def _axes(prefix: str, sizes: tuple[Size, ...]) -> Axes:
    return tuple([(axis_symbol(prefix, n, size), size) for n, size in enumerate(sizes)])


_kept_axes = lru_cache(maxsize=4096)(_axes)


@lru_cache(maxsize=4096)
def _axis_expr(symbol: Symbol) -> Expr:
    constant = constant_value(symbol)
    return as_expr(symbol if constant is None else constant)


def axis_coordinates(axes: Axes) -> tuple[Expr, ...]:
    """The point that the axes' symbols name; an axis of size one is 0."""
    return tuple(_axis_expr(symbol) for symbol, _ in axes)


def as_scalar(coordinate: Coordinate) -> Scalar:
    """The coordinate as an int64 scalar."""
    return index(coordinate) if isinstance(coordinate, Expr) else coordinate


def plus(a: Coordinate, b: Coordinate | int) -> Coordinate:
    """a + b."""
    b = as_expr(b) if isinstance(b, int) else b
    if isinstance(a, Expr) and isinstance(b, Expr):
        if not b.terms:
            return a
        return a + b if a.terms else b
    return apply("add", as_scalar(a), as_scalar(b))


def minus(a: Coordinate | int, b: Coordinate) -> Coordinate:
    """a - b."""
    a = as_expr(a) if isinstance(a, int) else a
    if isinstance(a, Expr) and isinstance(b, Expr):
        return a - b
    return apply("sub", as_scalar(a), as_scalar(b))


def times(a: Coordinate, factor: Size) -> Coordinate:
    """a * factor."""
    if isinstance(factor, int) and factor == 1:
        return a
    if isinstance(a, Expr):
        return a * factor
    return apply("mul", a, index(factor))


def quotient(a: Coordinate, divisor: Size) -> Coordinate:
    """floor(a / divisor)."""
    if isinstance(a, Expr):
        return floor_div(a, divisor)
    return apply("floordiv", a, index(divisor))


def remainder(a: Coordinate, divisor: Size) -> Coordinate:
    """a modulo divisor, never negative."""
    if isinstance(a, Expr):
        return modulo(a, divisor)
    return apply("mod", a, index(divisor))


def product(sizes: Sequence[Size]) -> Size:
    """The number of elements of a shape."""
    total: Size = 1
    for size in sizes:
        total = (
            size * total
            if isinstance(size, int) and isinstance(total, int)
            else as_expr(total) * size
        )
    if isinstance(total, Expr):
        constant = constant_value(total)
        return total if constant is None else constant
    return total


def ravel(at: Coordinates, shape: Sequence[Size]) -> Coordinate:
    """The row-major position of a point in `shape`."""
    position: Coordinate = ZERO
    for coordinate, size in zip(at, shape, strict=True):
        position = plus(times(position, size), coordinate)
    return position


def unravel(position: Coordinate, shape: Sequence[Size]) -> Coordinates:
    """The point of `shape` at a row-major position that lies inside it, or is checked."""
    found: list[Coordinate] = []
    for size in reversed(shape[1:]):
        found.append(remainder(position, size) if size != 1 else ZERO)
        position = quotient(position, size) if size != 1 else position
    if shape:
        is_known = shape[0] == 1 and isinstance(position, Expr)  # a scalar may hold a check
        found.append(ZERO if is_known else position)
    return tuple(reversed(found))


def address(at: Coordinates, stride: Sequence[Size], offset: Size) -> Coordinate:
    """offset + sum of coordinate * stride, in elements."""
    total: Coordinate = as_expr(offset)
    for coordinate, step in zip(at, stride, strict=True):
        total = plus(total, times(coordinate, step))
    return total


def contiguous_strides(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides, in elements; a size of zero counts as one, as PyTorch has it."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step if size in (0, 1) else product((step, size))
    return tuple(reversed(strides))


def strides_like(shape: Sequence[Size], stride: Sequence[Size]) -> tuple[Size, ...]:
    """Dense strides with the dimensions in the order of other strides; row-major where those are
    no numbers."""
    known = known_sizes(stride)
    if known is None:
        return contiguous_strides(shape)
    order = sorted(range(len(shape)), key=lambda dim: (-known[dim], dim))
    made = contiguous_strides([shape[dim] for dim in order])
    return tuple(made[order.index(dim)] for dim in range(len(shape)))
