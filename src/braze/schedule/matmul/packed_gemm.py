"""Cuts a product's kernel into the tiles that a CPU's tasks compute, of packed operands.

    kernel k1: b3 = x @ w;  for m < 512, n < 768: y[m, n] = gelu(b3[m, n])
becomes
    kernel k1: b3 = x @ w;  for m < 512 in chunks of 56, n < 768 in chunks of 64: the same

Refused: other dtypes than float32, operands that are computed, few rows of what is packed in each
call, rows whose packed columns
are larger than a second-level cache, and an epilogue that does not go along the rows of its memory.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from braze.ir.kernels.loops import Load
from braze.ir.kernels.scalars import loads
from braze.ir.kernels.schedule import Kernel, Store, offset
from braze.schedule.matmul.matmul_kernel import Operands
from braze.shapes.expr import Expr, Symbol, constant_value
from braze.shapes.substitution import substitute

ROWS = 56  # of a tile: whole blocks of registers, of 14 rows
COLUMNS = (64, 32)  # of a tile; whole panels of any vector width
_PACKED = 1 << 19  # bytes: half of a second-level cache
_FEW = 28  # rows: below, packing costs as much as multiplying
_LESS = 16  # times fewer multiplications


def is_worth_packing(operands: Operands, least: int, stays: bool, least_rows: int) -> bool:
    """Whether a product is one that such a kernel may be quicker for. least: multiplications.
    stays: whether its second matrix is packed once; least_rows: that it must have then."""
    depth = constant_value(operands.first.shape[-1]) or 0
    work = operands.batch * operands.m * operands.n * depth
    if stays:
        least = max(least // _LESS, 1)
    is_float = operands.first.dtype == torch.float32
    few = least_rows if stays else _FEW
    return is_float and work >= least and operands.m >= few and operands.n >= COLUMNS[-1]


def in_tiles(kernel: Kernel, stays: bool = False) -> Kernel | None:
    """The kernel in tiles; None where it is refused. stays: as `Product.stays`."""
    product = kernel.product
    assert product is not None
    (_, (n, _)) = kernel.phases[0].loops
    if product.computed != (None, None) or product.first.dtype != torch.float32:
        return None
    depth = constant_value(product.first.shape[-1]) or 0
    fitting = [columns for columns in COLUMNS if 4 * columns * depth <= _PACKED]
    stores = [s for s in kernel.phases[0].body if isinstance(s, Store)]
    places: list[tuple[Expr, tuple[int, ...]]] = []
    places += [(offset(s.target, s.coordinates), (1,)) for s in stores]
    read: list[Load] = [load for s in stores for load in loads(s.value)]
    places += [(offset(load.buffer, load.coordinates), (0, 1)) for load in read]
    if not fitting or not all(_runs(place, n, steps) for place, steps in places):
        return None
    return replace(kernel, chunks=(ROWS, fitting[0]), product=replace(product, stays=stays))


# --- private ---------------------------------------------------------------------------------


def _runs(place: Expr, along: Symbol, steps: tuple[int, ...]) -> bool:
    """Whether neighbours along a loop are one of so many elements apart, wherever they are."""
    moved = place - substitute(place, {along: 0})
    return any(constant_value(moved - along * step) == 0 for step in steps)
