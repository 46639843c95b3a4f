"""A block of a matrix that is computed where it is multiplied, in the loop over what is summed.

    pc4 = k_start + k_lane[None, :]                  its rows and columns, by the block's lanes
    v0 = tl.load(p1 + (pr3))                         before the loop: what does not change in it
    rows = (tl.load(p0 + (pr3 * 64 + pc4)) ...       in it: the element, rounded as in memory

Rows and columns behind the last ones are the first ones again, as of matrices that are read; behind
the last k there are zeros, whatever is computed of nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from braze.codegen.triton.operators import EXACT_FORMS, HALVES, RELAXED_FORMS, TYPES
from braze.codegen.triton.scope import Scope
from braze.codegen.triton.tiling import Dimension, Tiling
from braze.frozen import frozen
from braze.ir.loops import Apply, Buffer, Cast, Scalar
from braze.ir.scalars import loads, walk
from braze.ir.schedule import HEAVY_OPERATORS, Computed, Kernel
from braze.shapes.expr import constant_value


@frozen
class Prologue:
    """Lines before the loop, lines in it, and the block's text after those."""

    before: tuple[str, ...]
    inside: tuple[str, ...]
    block: str


def prologue_of(
    computed: Computed,
    side: Dimension,
    k_first: bool,
    tiling: Tiling,
    outer: Scope,
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
    scope = Scope(inside, outer.pointers, outer.sizes, _forms(computed, numerics))
    scope.local.update(outer.local)
    scope.prefix = "w" if is_second else "u"
    term = scope.emit(computed.value)
    text = scope.broadcast(term, frozenset({"k", side.name}))
    axes = ("[:, None]", "[None, :]")
    start = "k_start.to(tl.int64)" if tiling.wide else "k_start"
    head = [f"{depth.name} = {start} + k_lane{axes[not k_first]}"]
    if not along.is_exact:
        head.append(f"km = {depth.name} < {summed}")
        text = f"tl.where(km, {text}, 0.0).to(tl.{TYPES[computed.value.dtype]})"
    before = [f"{symbol.name} = z_block" for symbol, _ in batch]
    before.append(f"{lane[0].name} = {side.name}_at{axes[k_first]}")
    return Prologue((*before, *scope.lines[0]), (*head, *scope.lines[1]), text)


def may_pay(kernel: Kernel, tiling: Tiling) -> bool:
    """Whether what is computed by every program that reads a block of it may take less time than
    writing it once and reading it would; twice as long may still be hidden."""
    assert kernel.product is not None
    blocks = [-(-_number(d.size) // d.block) for d in tiling.dimensions[-2:]]
    saved = spent = 0.0
    for computed, times in zip(kernel.product.computed, reversed(blocks), strict=True):
        if computed is None:
            continue
        points = math.prod([_number(size) for _, size in computed.loops])
        read = {load.buffer for load in loads(computed.value)}
        moved = sum(min(_elements(b), points) * b.dtype.itemsize for b in read)
        done = sum(_price(node) for node in walk(computed.value)) * points
        saved += _LAUNCH + 2 * points * computed.value.dtype.itemsize / _MEMORY
        spent += (times - 1) * (moved / _CACHE + done / _OPERATIONS)
    return spent <= _HIDDEN * saved


# --- private ---------------------------------------------------------------------------------

# An H200: bytes a second of memory and of the second-level cache, operations a second, seconds of
# a launch.
_MEMORY, _CACHE, _OPERATIONS, _LAUNCH = 4e12, 8e12, 20e12, 3e-6
_HIDDEN = 2.0
_HEAVY = 8  # operations of one that is computed by several


def _price(scalar: Scalar) -> int:
    if isinstance(scalar, Apply):
        return _HEAVY if scalar.op in HEAVY_OPERATORS or scalar.op == "truediv" else 1
    return int(isinstance(scalar, Cast))


def _elements(buffer: Buffer) -> int:
    return math.prod([_number(size) for size in buffer.shape])


def _forms(computed: Computed, numerics: str) -> Mapping[str, str]:
    if numerics == "eager":
        return EXACT_FORMS
    read = {load.buffer.dtype for load in loads(computed.value)}
    relaxed = computed.value.dtype in HALVES and torch.float64 not in read
    return RELAXED_FORMS if relaxed else {}


def _number(size: object) -> int:
    found = constant_value(size)  # type: ignore[arg-type]
    assert found is not None, size
    return found
