"""The part of a task that multiplies matrices, before the loops over its tile.

    alignas(64) float packed[64 * 768];
    alignas(64) float sums[56 * 64];
    i64 held = -1;
    ...
    if (held != block1) bz_pack(768L, columns, p1 + ..., 1L, 768L, packed);
    bz_product<56, 64, 8, false>(rows, columns, 768L, p0 + ..., 768L, 1L, packed, sums);

Tasks go through the tiles of some columns one after another, so that a thread packs those once.
Of a weight that is packed already `p3` has the panels, or is null, and the task packs them:

    const float* const panels = p3 ? p3 + n_first * 768L : packed;
    if (panels == packed && held != block1) bz_pack(...);
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping

from braze.codegen.cpp.index import index_text
from braze.codegen.cpp.prelude import prelude_for
from braze.ir.kernels.kernel import SourceUnit
from braze.ir.kernels.loops import Buffer, BufferView, Load
from braze.ir.kernels.scalars import expressions
from braze.ir.kernels.schedule import Kernel
from braze.shapes.expr import as_expr, constant_value


def product_text() -> str:
    """The functions that kernels with products call."""
    return _resource("product.cpp")


def probe_unit() -> SourceUnit:
    """A unit that multiplies matrices of any sizes, to be timed: `void bz_probe(const i64* sizes,
    const float* a, const float* b, float* c, int threads)`; sizes: m, n, k, the steps of `a` from
    row to row and from column to column, then those of `b`, and whether that is packed already: by
    `void bz_pack_whole(const i64* sizes, const float* b, float* to)`; sizes: k, n and the steps."""
    text = "\n".join((product_text(), _resource("product_probe.cpp")))
    return SourceUnit("product_probe", f"{prelude_for(text)}\n{text}")


def convolution_unit() -> SourceUnit:
    """A unit that convolves images of any sizes (`convolution.cpp`): `bz_convolution`, and
    `bz_pack_convolution`, which lays out weights for it."""
    text = "\n".join((product_text(), _resource("convolution.cpp")))
    return SourceUnit("convolution", f"{prelude_for(text)}\n{text}")


def product_arrays(kernel: Kernel) -> list[str]:
    """What a thread keeps from task to task; nothing where the kernel has no product."""
    if kernel.product is None:
        return []
    rows, columns = kernel.chunks
    depth = constant_value(kernel.product.first.shape[-1])
    return [
        f"alignas(64) float packed[{columns} * {depth}];",
        f"alignas(64) float sums[{rows} * {columns}];",
        "i64 held = -1;",
    ]


def product_lines(kernel: Kernel, pointers: Mapping[Buffer, str]) -> list[str]:
    """The lines that compute the tile's sums; none where the kernel has no product."""
    if kernel.product is None:
        return []
    (m, height), (n, width) = kernel.phases[0].loops
    first, second = kernel.product.first, kernel.product.second
    rows, columns = kernel.chunks
    size = constant_value(height)
    assert size is not None and first.dtype == kernel.product.target.dtype, first
    place, blocks = "block1", -(-(constant_value(width) or 0) // columns)
    if kernel.rows:
        place = f"{kernel.rows[0][0]} * {blocks}L + block1"
    depth = index_text(as_expr(first.shape[-1]), {})
    down, across = (index_text(as_expr(step), {}) for step in second.stride[-2:])
    start = f"{n}_first * {depth}"
    packing = f"bz_pack({depth}, {n}_last - {n}_first, {_start(kernel, second, pointers)} + "
    packing += f"{n}_first * {across}, {down}, {across}, packed);"
    turned = "true" if constant_value(first.stride[-2]) == 1 else "false"
    down, across = (index_text(as_expr(step), {}) for step in first.stride[-2:])
    panels, lines = "packed", [f"if (held != {place}) {packing}"]
    if kernel.product.packed is not None:
        given = pointers[kernel.product.packed]
        panels = "panels"
        lines = [
            f"const float* const panels = {given} ? {given} + {start} : packed;",
            f"if (panels == packed && held != {place}) {packing}",
        ]
    return [
        *lines,
        f"held = {place};",
        f"bz_product<{rows}, {columns}, {size % rows}, {turned}>({m}_last - {m}_first, "
        f"{n}_last - {n}_first, {depth}, {_start(kernel, first, pointers)} + {m}_first * {down}, "
        f"{down}, {across}, {panels}, sums);",
    ]


def sum_text(kernel: Kernel, load: Load) -> str:
    """The element of the tile's sums that a load of the product reads."""
    row, column = expressions(load.coordinates[-2:])
    (m, _), (n, _) = kernel.phases[0].loops
    texts = [index_text(place, {}) for place in (row, column)]
    return f"sums[({texts[0]} - {m}_first) * {kernel.chunks[1]} + {texts[1]} - {n}_first]"


# --- private ---------------------------------------------------------------------------------


def _start(kernel: Kernel, view: BufferView, pointers: Mapping[Buffer, str]) -> str:
    """The first element of the matrix of a task's batch."""
    place = as_expr(view.offset)
    if len(view.shape) == 3 and kernel.rows:
        place = place + as_expr(kernel.rows[0][0]) * view.stride[0]
    return f"{pointers[view.buffer]} + {index_text(place, {})}"


def _resource(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text()
