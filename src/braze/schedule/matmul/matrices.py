"""Where the matrices of a product lie in memory, seen through copies that are made for it alone.

    b6[r0 // 32768, r0 // 64 % 512, r0 % 64] = f32(b0[r0 // 65536, r0 // 64 % 512, r0 % 64])
    b6 at 32768 * i0, rows of 64                 ->       b0 at 32768 * (i0 // 2), rows of 64

A conversion to a wider type, or the repetition of heads, costs nothing where a kernel reads what
was converted or repeated. Refused: copies that compute something, or whose elements lie in another
order than rows and columns do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.ir.kernels.loops import BufferView, Cast, Load
from braze.ir.kernels.scalars import is_exact
from braze.ir.kernels.schedule import Kernel, Matrix, Step, Store, offset
from braze.schedule.memory.allocate import written
from braze.shapes.expr import (
    Expr,
    Symbol,
    as_expr,
    constant_value,
    floor_div,
    modulo,
    simplified,
    symbols,
)
from braze.shapes.substitution import substitute

_HALVES = (torch.bfloat16, torch.float16)


def matrix_of(view: BufferView, batch: Expr, transposed: bool = False) -> Matrix | None:
    """A view of two dimensions, or of three with a batch, as the batch's matrix."""
    strides, width = list(view.stride), constant_value(view.shape[-2 if transposed else -1])
    if width is None or view.dtype != view.buffer.dtype:
        return None
    right, down = strides[-1], strides[-2]
    if transposed:
        right, down = down, right
    start = as_expr(view.offset)
    if len(strides) == 3 and constant_value(view.shape[0]) != 1:
        start = start + batch * as_expr(strides[0])
    return Matrix(view.buffer, start, down, right, width)


def read_through(matrix: Matrix, count: int | Expr, steps: Sequence[Step | None]) -> Matrix:
    """The matrix of `count` rows where a copy of it among the steps has it from, as long as one."""
    while (origin := _origin(matrix, count, steps)) is not None:
        matrix = origin
    return matrix


# --- private -------------------------------------------------------------------------------------


def _origin(matrix: Matrix, count: int | Expr, steps: Sequence[Step | None]) -> Matrix | None:
    makers = [(n, s) for n, s in enumerate(steps) if s is not None and matrix.buffer in written(s)]
    if len(makers) != 1:
        return None
    ((number, maker),) = makers
    if not isinstance(maker, Kernel) or (found := _copied(maker, matrix)) is None:
        return None
    store, load = found
    if any(s is not None and load.buffer in written(s) for s in steps[number:]):
        return None  # what was copied may be something else by then
    rows = constant_value(count)
    row = Symbol("row", 0, None if rows is None else rows - 1)
    column = Symbol("column", 0, matrix.width - 1)
    place = matrix.place(as_expr(row), as_expr(column))
    moves = inverse_of(maker, store, place)
    if moves is None:
        return None
    source = offset(load.buffer, [substitute(c, moves) for c in _plain(load)])
    return _as_matrix(source, load, row, column, matrix.width)


def _copied(kernel: Kernel, matrix: Matrix) -> tuple[Store, Load] | None:
    """What stores the matrix, if it does nothing but convert what is read elsewhere."""
    if len(kernel.phases) != 1 or kernel.product or kernel.attention or kernel.columns:
        return None
    phase = kernel.phases[0]
    stores = [s for s in (*phase.body, *phase.row) if s.target is matrix.buffer]
    if len(stores) != 1 or not isinstance(stores[0], Store) or stores[0] in phase.row:
        return None
    value = stores[0].value
    if isinstance(value, Cast) and is_exact(value.operand.dtype, value.dtype):
        value = value.operand
    if not isinstance(value, Load) or value.buffer in written(kernel):
        return None
    if value.dtype not in (*_HALVES, torch.float32) or len(_plain(value)) < len(value.coordinates):
        return None
    return stores[0], value


def _plain(load: Load) -> list[Expr]:
    return [c for c in load.coordinates if isinstance(c, Expr)]


def inverse_of(kernel: Kernel, store: Store, place: Expr) -> dict[Symbol, Expr] | None:
    """The kernel's loops where it stores an element at a place of its target."""
    loops = (*kernel.rows, *kernel.phases[0].loops)
    step, moves = as_expr(1), {}
    stored = offset(store.target, store.coordinates)
    for symbol, size in reversed(loops):
        ahead = floor_div(place, step)
        moves[symbol] = ahead if symbol is loops[0][0] else modulo(ahead, size)
        step = step * as_expr(size)
    numbered, step = as_expr(0), as_expr(1)
    for symbol, size in reversed(loops):
        numbered, step = numbered + as_expr(symbol) * step, step * as_expr(size)
    return moves if constant_value(stored - numbered) == 0 else None


def _as_matrix(source: Expr, load: Load, row: Symbol, column: Symbol, width: int) -> Matrix | None:
    def at(one: int, other: int) -> Expr:
        return substitute(source, {row: as_expr(one), column: as_expr(other)})

    start = at(0, 0)
    down, right = at(1, 0) - start, at(0, 1) - start
    rest = source - start - as_expr(row) * down - as_expr(column) * right
    if constant_value(rest) != 0 or {row, column} & symbols(start):
        return None
    return Matrix(load.buffer, start, simplified(down), simplified(right), width)
