"""A block of a matrix that is computed where it is multiplied, in the loop over what is summed.

    pc4 = k_start + k_lane[None, :]                  its rows and columns, by the block's lanes
    v0 = tl.load(p1 + (pr3))                         before the loop: what does not change in it
    rows = (tl.load(p0 + (pr3 * 64 + pc4)) ...       in it: the element, rounded as in memory

Rows and columns behind the last ones are the first ones again, as of matrices that are read; behind
the last k there are zeros, whatever is computed of nothing.

Where an index divides the number of what is summed, as the windows of a convolution do, it is told
of the block and of the lane in it:

    pc1 // 64 % 3, by blocks of 32              ->       k_block // 2 % 3
    pc1 % 64                                    ->       k_block % 2 * 32 + pc1_lane
"""

from __future__ import annotations

import math
from dataclasses import replace

from braze.codegen.triton.forms import forms_of_computed
from braze.codegen.triton.operators import TYPES
from braze.codegen.triton.scope import TritonScope
from braze.codegen.triton.tiling import Dimension, Tiling
from braze.frozen import frozen
from braze.ir.device_model import DeviceModel
from braze.ir.kernels.loops import Apply, Buffer, Cast, Index, Scalar
from braze.ir.kernels.scalars import loads, substitute_symbols, walk
from braze.ir.kernels.schedule import HEAVY_OPERATORS, ComputedMatrix, Kernel
from braze.ir.types import Size
from braze.shapes.expr import Expr, Symbol, as_expr, as_expr_of, constant_value, symbols


@frozen
class Prologue:
    """Lines before the loop, lines in it, and the block's text after those."""

    before: tuple[str, ...]
    inside: tuple[str, ...]
    block: str


def prologue_of(
    computed: ComputedMatrix,
    side: Dimension,
    k_first: bool,
    tiling: Tiling,
    outer: TritonScope,
    numerics: str,
) -> Prologue:
    """The block of a product's matrix. side: the product's rows, of the first, or its columns, of
    the second; k_first: whether the block's first axis is what is summed; outer: the scope of the
    function."""
    *batch, row, column = computed.loops
    is_second = side.name == "x"
    lane, (depth, summed) = (column, row) if is_second else (row, column)
    block = -(-_number(lane[1]) // side.block) * side.block  # lanes behind the last are the first
    across = Dimension(side.name, ((lane[0], block),), side.block)
    along = Dimension("k", ((depth, summed),), tiling.inner, walked=True)
    batches = (Dimension("z", tuple(batch), 0),) if batch else ()
    shape = (along, across) if k_first else (across, along)
    inside = replace(tiling, dimensions=(*batches, *shape))
    scope = TritonScope(inside, outer.pointers, outer.sizes, forms_of_computed(computed, numerics))
    scope.local.update(outer.local)
    scope.prefix = "w" if is_second else "u"
    axes = ("[:, None]", "[None, :]")
    before = [f"{symbol.name} = z_block" for symbol, _ in batch]
    before.append(f"{lane[0].name} = {side.name}_at{axes[k_first]}")
    start, lanes = "k_start.to(tl.int64)" if tiling.wide else "k_start", axes[not k_first]
    head, value = [f"{depth.name} = {start} + k_lane{lanes}"], computed.value
    if _is_divided(value, depth):
        value = _in_blocks(value, depth, along, scope)
        before.append(f"{depth.name}_lane = k_lane{lanes}")
        head = [f"k_block = {start} // KB", *([] if along.is_exact else head)]
    if not along.is_exact:
        head.append(f"km = {depth.name} < {summed}")
    text = _block(value, computed.gathered, scope)
    return Prologue((*before, *scope.lines[0]), (*head, *scope.lines[1]), text)


def may_pay(kernel: Kernel, tiling: Tiling, device: DeviceModel) -> bool:
    """Whether what is computed by every program that reads a block of it may take less time than
    writing it once and reading it would; twice as long may still be hidden."""
    assert kernel.product is not None
    blocks = [-(-_number(d.size) // d.block) for d in tiling.dimensions[-2:]]
    saved = spent = 0.0
    for computed, times in zip(kernel.product.computed, reversed(blocks), strict=True):
        if computed is None or computed.gathered:
            continue
        points = math.prod([_number(size) for _, size in computed.loops])
        read = {load.buffer for load in loads(computed.value)}
        moved = sum(min(_elements(b), points) * b.dtype.itemsize for b in read)
        done = sum(_price(node) for node in walk(computed.value)) * points
        saved += device.launch + 2 * points * computed.value.dtype.itemsize / device.hidden_memory
        spent += (times - 1) * (moved / device.cache + done / device.operations)
    return spent <= _HIDDEN * saved


# --- private ---------------------------------------------------------------------------------

_HIDDEN = 2.0
_HEAVY = 8  # operations of one that is computed by several


def _block(value: Scalar, is_gathered: bool, scope: TritonScope) -> str:
    """The text of a block's elements, zeros behind the last k. What is gathered is read with them,
    so that it may go where it is multiplied as it comes."""
    (along,) = [d for d in scope.tiling.dimensions if d.name == "k"]
    (across,) = [d for d in scope.tiling.axes if d is not along]
    gathered = scope.emit_gathered(value) if is_gathered else None
    term = gathered or scope.emit(value)
    text = scope.broadcast(term, frozenset({"k", across.name}))
    if along.is_exact or gathered is not None:
        return text
    return f"tl.where(km, {text}, 0.0).to(tl.{TYPES[value.dtype]})"


def _is_divided(value: Scalar, depth: Symbol) -> bool:
    """Whether some index is a quotient, or what is left of one, of the number of what is summed."""
    exprs = [node.expr for node in walk(value) if isinstance(node, Index)]
    exprs += [c for load in loads(value) for c in load.coordinates if isinstance(c, Expr)]
    atoms = [atom for expr in exprs for monomial, _ in expr.terms for atom in monomial]
    return any(type(a) is not Symbol and depth in symbols(as_expr_of(a)) for a in atoms)


def _in_blocks(value: Scalar, depth: Symbol, along: Dimension, scope: TritonScope) -> Scalar:
    """The same by the number of a block and the place in it: where blocks lie within a window's
    element, that is known of the block, and neighbours are seen to be neighbours."""
    inner, summed = along.block, _number(along.size)
    block, lane = Symbol("k_block", 0, (summed - 1) // inner), Symbol(f"{depth}_lane", 0, inner - 1)
    scope.along |= {block: frozenset({"k_block"}), lane: frozenset({"k"})}
    scope.walked |= {"k_block"}
    scope.keeps_fixed = True
    return substitute_symbols(value, {depth: as_expr(block) * inner + lane})


def _price(scalar: Scalar) -> int:
    if isinstance(scalar, Apply):
        return _HEAVY if scalar.op in HEAVY_OPERATORS or scalar.op == "truediv" else 1
    return int(isinstance(scalar, Cast))


def _elements(buffer: Buffer) -> int:
    return math.prod([_number(size) for size in buffer.shape])


def _number(size: Size) -> int:
    found = constant_value(size)
    assert found is not None, size
    return found
