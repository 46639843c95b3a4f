"""How a kernel's points are laid out over programs and blocks.

A kernel has up to three dimensions, each a run of its loops taken as one:

    pointwise            x: every loop (or y and x: a tile, where layouts differ)
    rows and reductions  x: the rows, r: the loops of a phase

A dimension with a block is an axis of the program's values, one without is a number. `r` is held
as a whole (persistent: everything is read once), or walked block by block, once a phase.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from braze.codegen.triton.cost import (
    block_sizes,
    estimate,
    flat_blocks,
    power_of_two,
    spread_warps,
    tile_blocks,
)
from braze.frozen import frozen
from braze.ir.device_model import DeviceModel
from braze.ir.kernels.loops import Buffer, Scalar
from braze.ir.kernels.scalars import loads, walk
from braze.ir.kernels.schedule import (
    Accumulate,
    ComputedMatrix,
    Kernel,
    Loop,
    functions_of,
    offset,
    scalar_of,
)
from braze.shapes.expr import Expr, as_expr, bounds, constant_value, symbols

_READ = 16  # bytes that a thread reads at once
_LINE = 128  # bytes of memory that a warp's reads begin with at best
_LONG_ROW = 128  # points from which on it pays to align what is read of a row
_LARGEST_INDEX = 2**31 - 2**17  # less than 32 bits by more than any block


@final
@frozen
class Dimension:
    """name: of its index; loops: outermost first; block: its points in a program, a power of two,
    0 for one point that is a number. walked: block by block, in a loop. shift: blocks begin at a
    multiple of so many elements in memory, before the first point. unit: what is read ends at a
    multiple of so many."""

    name: str
    loops: tuple[Loop, ...]
    block: int
    walked: bool = False
    shift: int = 0
    unit: int = 0

    @property
    def size(self) -> Expr:
        """How many points it has."""
        total = as_expr(1)
        for _, size in self.loops:
            total = total * size
        return total

    @property
    def is_exact(self) -> bool:
        """Whether its blocks hold nothing but points: no mask is needed."""
        size = constant_value(self.size)
        whole = size is not None and size > 0 and size % max(self.block, 1) == 0
        return not self.block or (whole and not self.shift)


@final
@frozen
class Tiling:
    """dimensions: slowest first; blocked ones are the axes of values in this order. reduced: the
    name of the one that phases run over, or "". wide: indices need 64 bits. stages: blocks of a
    walked row that are on their way from memory at once. base: where rows begin that are not
    aligned, of the accesses that are to be. together: rows that a program does one after another.
    inner: how many terms of a product are summed at once. parts: programs that share a row.
    """

    dimensions: tuple[Dimension, ...]
    reduced: str
    wide: bool
    warps: int
    stages: int = 1
    base: Expr | None = None
    together: int = 1
    inner: int = 0
    parts: int = 1

    @property
    def axes(self) -> tuple[Dimension, ...]:
        """The dimensions that are axes of blocks."""
        return tuple(d for d in self.dimensions if d.block)

    @property
    def grid_dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions that programs are numbered by."""
        return tuple(d for d in self.dimensions if d.name != self.reduced)


def is_flat(kernel: Kernel) -> bool:
    """Whether a kernel has nothing but points: no values of rows, no second phase."""
    (first, *others) = kernel.phases
    return not others and not first.row and not any(isinstance(s, Accumulate) for s in first.body)


def is_wide(kernel: Kernel) -> bool:
    """Whether an index or an offset may not fit 32 bits."""
    spaces = [_count(size for _, size in {*kernel.rows, *kernel.phases[0].loops})]
    spaces += [_extent(buffer) for buffer in kernel.memory]
    spaces += [_count(size for _, size in computed.loops) for computed in _computed(kernel)]
    spaces += [_largest(expr) for expr in _index_values(kernel)]
    return any(space is None or space > _LARGEST_INDEX for space in spaces)


def plan_tiling(kernel: Kernel, device: DeviceModel) -> Tiling:
    """The tiling that the cost model takes for the best."""
    wide = is_wide(kernel)
    loops = kernel.phases[0].loops
    if kernel.spread is not None:
        length, parts = kernel.spread.length, kernel.spread.parts
        held = (Dimension("x", kernel.rows, 0), Dimension("r", loops, length))
        return Tiling(held, "r", wide, spread_warps(kernel, kernel.spread), parts=parts)
    if not is_flat(kernel):
        sizes = block_sizes(kernel, device)
        walked = not sizes.persistent
        is_one = not sizes.rows and not kernel.columns
        base, unit = _unaligned(kernel) if is_one else (None, 0)
        shift = unit * (_LINE // _READ if walked else 1)
        block = sizes.inner
        if shift and not walked:
            block = power_of_two(estimate(loops[0][1]) + shift - 1)
        rows = Dimension("x", kernel.rows, sizes.rows)
        inner = Dimension("r", loops, block, walked, shift, unit)
        together = kernel.block or 1
        return Tiling((rows, inner), "r", wide, sizes.warps, sizes.stages, base, together)
    if len(kernel.chunks) == 2 and all(kernel.chunks):
        sizes = tile_blocks(kernel)
        across, along = loops
        rest = (Dimension("z", kernel.rows, 0),) if kernel.rows else ()
        tile = (Dimension("y", (across,), sizes.rows), Dimension("x", (along,), sizes.inner))
        return Tiling((*rest, *tile), "", wide, sizes.warps)
    sizes = flat_blocks(kernel, device)
    return Tiling((Dimension("x", (*kernel.rows, *loops), sizes.inner),), "", wide, sizes.warps)


# --- private ---------------------------------------------------------------------------------


def _unaligned(kernel: Kernel) -> tuple[Expr | None, int]:
    """Where rows begin that are not aligned to 16 bytes each, and how many elements that are;
    (None, 0) where rows are aligned, short, or more than one run of memory."""
    loops = kernel.phases[0].loops
    length = constant_value(loops[0][1]) if len(loops) == 1 else None
    if length is None or length < _LONG_ROW or kernel.lanes:
        return None, 0
    symbol = as_expr(loops[0][0])
    for phase in kernel.phases:
        for statement in phase.body:
            body = scalar_of(statement)
            for load in loads(body):
                place = offset(load.buffer, load.coordinates)
                base, width = place - symbol, _READ // load.buffer.dtype.itemsize
                if loops[0][0] in symbols(base) or not symbols(base):
                    continue
                if any(not isinstance(c, Expr) for c in load.coordinates):
                    continue
                return (base, width) if any(c % width for _, c in base.terms) else (None, 0)
    return None, 0


def _count(sizes: Iterable[int | Expr]) -> int | None:
    total = 1
    for size in sizes:
        _, high = bounds(size)
        if high is None:
            return None
        total *= max(high, 1)
    return total


def _extent(buffer: Buffer) -> int | None:
    total = 1
    for size, stride in zip(buffer.shape, buffer.stride):
        length, step = bounds(size)[1], bounds(stride)[1]
        if length is None or step is None:
            return None
        total += max(length - 1, 0) * step
    return total


def _computed(kernel: Kernel) -> list[ComputedMatrix]:
    """Matrices that are computed where they are multiplied."""
    sides = kernel.product.computed if kernel.product is not None else ()
    return [computed for computed in sides if computed is not None]


def _index_values(kernel: Kernel) -> Iterable[Expr]:
    if kernel.attention is not None:
        for scalar in functions_of(kernel.attention):
            yield from _indices(scalar)
    for computed in _computed(kernel):
        yield from _indices(computed.value)
    for phase in kernel.phases:
        for statement in (*phase.body, *phase.row):
            value = scalar_of(statement)
            if isinstance(statement, Accumulate) and statement.position is not None:
                yield statement.position
            yield from _indices(value)


def _indices(value: Scalar) -> Iterable[Expr]:
    for node in walk(value):
        expr = getattr(node, "expr", None)
        if expr is not None:
            yield expr


def _largest(expr: Expr) -> int | None:
    """The largest magnitude of the terms added up: no partial sum is larger."""
    total = 0
    for term in expr.terms:
        low, high = bounds(Expr((term,)))
        if low is None or high is None:
            return None
        total += max(abs(low), abs(high))
    return total
