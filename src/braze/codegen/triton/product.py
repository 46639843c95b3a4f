"""The lines of a product of matrices, before what is done with its elements.

    y_block, x_block = ...                       programs in groups that share what the cache has
    acc = tl.zeros([YB, XB], tl.float32)
    for k_start in tl.range(0, K, KB): acc = tl.dot(rows, columns, acc)

One row is multiplied without matrix units, of which it would use a sixteenth: every thread sums
its own places of k, and a block of few columns is enough work for a program.

    acc = tl.zeros([KB, XB], tl.float32)
    for k_start in tl.range(0, K, KB): acc += rows * columns
    acc = tl.sum(acc, 0)[None, :]

Rows and columns behind the last ones are read from the first ones again, and never written; behind
the last k there are zeros. float32 is multiplied as it is, or as tf32 where the product says so: it
is rounded to that before, since matrix units cut off what does not count (2.6 times the error).
"""

from __future__ import annotations

import torch

from braze.codegen.triton.block_shapes import likely_shapes
from braze.codegen.triton.prologue import prologue_of
from braze.codegen.triton.scope import TritonScope
from braze.codegen.triton.tiling import Dimension, Tiling
from braze.ir.device_model import DeviceModel
from braze.ir.kernels.loops import BufferView
from braze.ir.kernels.schedule import Kernel, Product
from braze.ir.types import Size
from braze.shapes.expr import as_expr, constant_value

_GROUP = 8  # blocks of rows whose columns are read one after another
# (rows, columns, summed, warps, stages) of a program; the first is the cost model's choice.
_SHAPES = (
    (128, 128, 64, 8, 3),
    (128, 256, 64, 8, 3),
    (128, 128, 64, 4, 4),
    (128, 128, 32, 4, 4),
    (256, 128, 64, 8, 3),
    (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 64, 64, 4, 4),
    (64, 64, 32, 4, 5),
)
# Of so many points, the second is the likeliest: it reads least, and fills every processor twice.
_MANY_POINTS = 1 << 24
# Without matrix units: sums in registers.
_FLOAT_SHAPES = ((64, 64, 16, 4, 3), (128, 64, 16, 8, 3), (128, 128, 16, 8, 3), (64, 64, 32, 8, 2))
# From so many rows a column on what takes time is often memory, and columns are few.
_TALL = 16
# Of up to so many rows, (columns, summed, warps, stages): what takes time is reading the second
# matrix, so that there are enough programs, each with much of it on its way.
_FEW_ROWS = 32
_FEW_SHAPES = (
    (32, 256, 4, 4),
    (32, 256, 4, 6),
    (32, 512, 8, 3),
    (16, 512, 4, 4),
    (32, 128, 4, 5),
    (32, 128, 2, 5),
    (16, 256, 4, 4),
    (64, 128, 4, 4),
    (64, 256, 8, 3),
    (128, 128, 8, 3),
)
# Of one row, likewise; the first two are for a matrix whose columns lie in memory one by one.
_ONE_SHAPES = (
    (8, 1024, 4, 3),
    (8, 1024, 4, 1),
    (4, 1024, 4, 3),
    (4, 1024, 4, 1),
    (8, 512, 4, 3),
    (16, 512, 4, 3),
    (4, 2048, 8, 2),
    (2, 1024, 2, 3),
    (64, 64, 4, 3),
    (32, 256, 8, 3),
)
_FEW_FLOAT_SHAPES = ((32, 64, 4, 4), (16, 128, 4, 4), (64, 64, 4, 4))


def product_tilings(kernel: Kernel, wide: bool, device: DeviceModel) -> list[Tiling]:
    """The ways to compute a product, the likeliest first."""
    assert kernel.product is not None
    first = kernel.product.first
    across, along = kernel.phases[0].loops
    summed = _number(first.shape[-1])
    found: dict[Tiling, None] = {}
    extents = _number(across[1]), _number(along[1])
    for rows, columns, inner, warps, stages in _of(kernel.product, *extents, device):
        inner = max(16, min(inner, 1 << max(summed - 1, 0).bit_length()))
        shared = stages * (rows + columns) * inner * first.dtype.itemsize
        if shared > device.blocks_bytes:
            continue
        batch = (Dimension("z", kernel.rows, 0),) if kernel.rows else ()
        tile = (Dimension("y", (across,), rows), Dimension("x", (along,), columns))
        found[Tiling((*batch, *tile), "", wide, warps, stages, inner=inner)] = None
    return list(found)


def block_lines(tiling: Tiling) -> list[str]:
    """Which block a program computes: y_block, x_block, and z of a batch."""
    y, x = tiling.dimensions[-2:]
    counts = [-(-_number(d.size) // d.block) for d in (y, x)]
    place = "tl.program_id(0)" + (".to(tl.int64)" if tiling.wide else "")
    lines = [f"pid = {place}"]
    if len(tiling.dimensions) > 2:
        blocks = counts[0] * counts[1]
        lines += [f"z_block = pid // {blocks}", f"pid = pid % {blocks}"]
    group = _GROUP * counts[1]
    return [
        *lines,
        f"y_first = pid // {group} * {_GROUP}",
        f"y_count = tl.minimum({counts[0]} - y_first, {_GROUP})",
        f"y_block = y_first + pid % {group} % y_count",
        f"x_block = pid % {group} // y_count",
    ]


def product_lines(product: Product, tiling: Tiling, scope: TritonScope, numerics: str) -> list[str]:
    """The lines that compute `acc`; scope: of the function, before anything is computed in it."""
    y, x = tiling.dimensions[-2:]
    summed, inner = _number(product.first.shape[-1]), tiling.inner
    is_one = y.block == 1
    lines = [
        f"k_lane = tl.arange(0, {inner})",
        f"y_at = {_lane(y, 'y')}",
        f"x_at = {_lane(x, 'x')}",
    ]
    if is_one or product.computed != (None, None):
        lines.append(f"KB: tl.constexpr = {inner}")
    before, inside, moved = _blocks_of(product, tiling, scope, numerics)
    how = f', input_precision="{product.precision}"' if product.first.dtype.itemsize == 4 else ""
    steps = [f"acc = tl.dot(rows, columns, acc{how})"]
    if is_one:
        steps = ["acc += rows.to(tl.float32) * columns.to(tl.float32)"]
    elif _is_tf32(product):
        steps = [*(f"{name} = bz_to_tf32({name})" for name in _SIDES), *steps]
    return [
        *lines,
        *before,
        f"acc = tl.zeros([{'KB' if is_one else 'YB'}, XB], tl.float32)",
        f"for k_start in tl.range(0, {summed}, {inner}, num_stages={tiling.stages}):",
        *(f"    {line}" for line in (*inside, *steps, *moved)),
        *(["acc = tl.sum(acc, 0)[None, :]"] if is_one else []),
    ]


# --- private ---------------------------------------------------------------------------------

# What is multiplied, and the pointers that it is read by.
_SIDES = {"rows": "left", "columns": "right"}


def _of(
    product: Product, rows: int, columns: int, device: DeviceModel
) -> list[tuple[int, int, int, int, int]]:
    """The shapes of blocks to try, for a result of so many rows and columns."""
    itemsize = product.first.dtype.itemsize
    is_tall = rows >= _TALL * columns or product.computed[0] is not None
    has_units = itemsize == 2 or _is_tf32(product)
    if rows > _FEW_ROWS and has_units and (is_tall or itemsize != 2):
        return likely_shapes(rows, columns, _number(product.first.shape[-1]), itemsize, device)
    return _shapes(rows, columns, itemsize)


def _is_tf32(product: Product) -> bool:
    return product.first.dtype == torch.float32 and product.precision == "tf32"


def _shapes(rows: int, columns: int, itemsize: int) -> list[tuple[int, int, int, int, int]]:
    """(rows, columns, summed, warps, stages) for a result of so many rows and columns."""
    if rows > _FEW_ROWS:
        if itemsize != 2:
            return list(_FLOAT_SHAPES)
        first, second, *rest = _SHAPES
        is_large = rows * columns >= _MANY_POINTS
        return [second, first, *rest] if is_large else [first, second, *rest]
    block = 16 if rows <= 16 else 32
    few = _FEW_SHAPES if itemsize == 2 else _FEW_FLOAT_SHAPES
    one = [(1, *shape) for shape in _ONE_SHAPES] if rows == 1 else []
    return [*one, *((block, *shape) for shape in few)]


def _blocks_of(
    product: Product, tiling: Tiling, scope: TritonScope, numerics: str
) -> tuple[list[str], list[str], list[str]]:
    """Lines before the loop, those in it that make `rows` and `columns`, and its last ones."""
    y, x = tiling.dimensions[-2:]
    summed, inner = _number(product.first.shape[-1]), tiling.inner
    before: list[str] = []
    inside: list[str] = []
    moved: list[str] = []
    for name, view, computed in zip(_SIDES, (product.first, product.second), product.computed):
        k_first = y.block == 1 or name == "columns"
        if computed is not None:
            side = x if name == "columns" else y
            part = prologue_of(computed, side, k_first, tiling, scope, numerics)
            before += part.before
            inside += [*part.inside, f"{name} = {part.block}"]
            continue
        pointer = _SIDES[name]
        before.append(f"{pointer} = {_block(view, name, scope.pointers[view.buffer], k_first)}")
        inside.append(f"{name} = tl.load({pointer}{_mask(k_first, summed, inner)})")
        step = view.stride[-1 if name == "rows" else -2]
        moved.append(f"{pointer} += {_number(step) * inner}")
    return before, inside, moved


def _mask(k_first: bool, summed: int, inner: int) -> str:
    """Of a block that is read: zeros behind the last k."""
    if summed % inner == 0:
        return ""
    return f", (k_lane < {summed} - k_start)[{':, None' if k_first else 'None, :'}], 0.0"


def _block(view: BufferView, name: str, pointer: str, k_first: bool) -> str:
    """Pointers to the first block of a matrix; k_first: its first axis is what is summed."""
    k_lane, lane = "k_lane[:, None]", "[None, :]"
    if not k_first:
        k_lane, lane = "k_lane[None, :]", "[:, None]"
    if name == "rows":
        return _matrix(view, pointer, f"y_at{lane}", k_lane)
    return _matrix(view, pointer, k_lane, f"x_at{lane}")


def _lane(dimension: Dimension, name: str) -> str:
    """The rows or columns of a block; those behind the last one are the first ones."""
    block = f"{name.upper()}B"
    text = f"{name}_block * {block} + tl.arange(0, {block})"
    if dimension.is_exact:
        return text
    size = _number(dimension.size)
    together = min(dimension.block, size & -size)  # no run of so many, from a multiple, is cut
    text = f"({text}) % {size}"
    if together == 1:
        return text
    return f"tl.max_contiguous(tl.multiple_of({text}, {together}), {together})"


def _matrix(view: BufferView, pointer: str, rows: str, columns: str) -> str:
    """Pointers to a block of a matrix."""
    *batch, down, right = map(_number, view.stride)
    parts = [pointer, *([str(view.offset)] if as_expr(view.offset) != as_expr(0) else [])]
    if batch and _number(view.shape[0]) > 1:
        parts.append(f"z_block * {batch[0]}")
    for at, stride in ((rows, down), (columns, right)):
        parts.append(at if stride == 1 else f"{at} * {stride}")
    return f"{parts[0]} + ({' + '.join(parts[1:])})"


def _number(size: Size) -> int:
    found = constant_value(size)
    assert found is not None, size
    return found
