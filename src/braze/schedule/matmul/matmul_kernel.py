"""Builds the kernel of a matrix product with its epilogue.

    b2 = aten.mm(x, w)
    kernel k1: rows i0 < 4096; for r0 < 768: y[i0, r0] = gelu(b2[i0, r0])
becomes
    kernel k1: b3 = x @ w;  for m < 4096, n < 768: y[m, n] = gelu(bf16(b3[m, n]))

What is read of the product keeps the rounding of the library's result. `addmm` and `baddbmm` add
their first argument before that, once, as the library does.
Refused: sizes that are symbols, kernels that fold, and kernels that write to inputs in place, which
the product may still read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall, Load, Scalar
from braze.ir.kernels.scalars import apply, cast, loads, rebuild, replace_children
from braze.ir.kernels.scalars import substitute_symbols as substituted
from braze.ir.kernels.schedule import (
    ComputedMatrix,
    Kernel,
    Loop,
    Phase,
    Precision,
    Product,
    Store,
    offset,
)
from braze.schedule.memory.allocate import written
from braze.schedule.simplify.normalize import Names
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, floor_div, modulo
from braze.shapes.substitution import substitute

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Operator -> the place of the first matrix among its arguments.
_PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}


@final
@frozen
class Operands:
    """Of a product: its matrices, what is added (None: nothing), and its extents.

    computed: the matrices that no view shows (`Product.computed`). precision: as there.
    adds_to_rounded: the sum is rounded by itself before something is added to it.
    """

    first: BufferView
    second: BufferView
    added: BufferView | None
    batch: int
    m: int
    n: int
    computed: tuple[ComputedMatrix | None, ComputedMatrix | None] = (None, None)
    precision: Precision = "ieee"
    adds_to_rounded: bool = False


def operands_of(call: ExternCall) -> Operands | None:
    """The operands of a product whose sizes are known; None for any other call."""
    place = _PRODUCTS.get(call.op._schema.name)
    if place is None or call.op._schema.overload_name not in ("", "default") or call.kwargs:
        return None
    if len(call.args) != place + 2 or not all(type(x) is BufferView for x in call.args):
        return None
    first, second = call.args[place:]
    added = call.args[0] if place else None
    views = [first, second, *([added] if added is not None else [])]
    if not all(is_plain(view, first) for view in views) or first.dtype not in DTYPES:
        return None
    *batch, m, _ = map(constant_value, first.shape)
    n = constant_value(second.shape[-1])
    assert m is not None and n is not None
    (target,) = call.outputs
    batches = (batch or [1])[0] or 0
    if target is None or not _is_row_major(target, (batches, m, n)) or min(batches, m, n) < 1:
        return None
    return Operands(first, second, added, batches, m, n)


def is_plain(view: BufferView, first: BufferView) -> bool:
    """Whether it is a tensor of known sizes, and of the first one's dtype and device."""
    sizes = [*view.shape, *view.stride, view.offset]
    known = all(constant_value(size) is not None for size in sizes)
    is_alike = view.dtype == first.dtype and view.buffer.device == first.buffer.device
    return known and is_alike and view.dtype == view.buffer.dtype and not view.is_number


def is_pointwise(kernel: Kernel) -> bool:
    """Whether a kernel only stores values of points."""
    (phase, *others) = kernel.phases
    if others or phase.row or kernel.columns or kernel.scratch or kernel.product is not None:
        return False
    return all(isinstance(s, Store) and s.target in kernel.memory for s in phase.body)


def is_in_order(load: Load) -> bool:
    """Whether no coordinate is looked up."""
    return all(isinstance(c, Expr) for c in load.coordinates)


def product_kernel(
    call: ExternCall,
    operands: Operands,
    rest: Kernel | None,
    names: Names,
    is_kept: bool,
    computed: tuple[ComputedMatrix | None, ComputedMatrix | None] = (None, None),
) -> Kernel | None:
    """The kernel of a product and of what reads it, if anything does; None where they cannot be
    one. is_kept: the product's own result is needed, too. computed: of its matrices, beside those
    that no view shows."""
    (target,) = call.outputs
    assert target is not None
    sizes = (operands.batch, operands.m, operands.n)
    first, second = (a or b for a, b in zip(operands.computed, computed, strict=True))
    read = _read_by(operands, (first, second))
    b, m, n = (Symbol(name, 0, size - 1) for name, size in zip(("pb0", "pm0", "pn0"), sizes))
    place = (as_expr(b if operands.batch > 1 else 0), as_expr(m), as_expr(n))
    inner = place[-2:] if operands.batch == 1 and len(target.shape) != 3 else place
    sums = names.buffer(target, sizes[-len(inner) :], dtype=torch.float32)
    value = _rounded(Load(sums, inner), operands, inner, target.dtype)
    at = inner if _is_row_major(target, sizes) else _unravelled(target, _element(place, sizes))
    stores: tuple[Store, ...] = (Store(target, at, value, call.origin),)
    if rest is not None:
        moves = _moves(rest, target, place, sizes)
        if moves is None or read.keys() & {*written(rest)}:
            return None
        behind = _stores(rest, target, value, moves)
        stores = (*stores, *behind) if is_kept else behind
    if not all(is_in_order(load) for s in stores for load in loads(s.value)):
        return None
    memory = list(read) + [target] * (is_kept or rest is None)
    memory += [b for b in rest.memory if b is not target] if rest is not None else []
    rows: tuple[Loop, ...] = ((b, operands.batch),) if operands.batch > 1 else ()
    phase = Phase(((m, operands.m), (n, operands.n)), stores)
    product = Product(sums, operands.first, operands.second, (first, second), operands.precision)
    name = call_name(target) if rest is None else rest.name
    return Kernel(name, rows, (phase,), tuple(dict.fromkeys(memory)), product=product)


def call_name(target: Buffer) -> str:
    """The name of a kernel that does nothing but what a call did."""
    return f"k_{target}"


def loops_at(
    loops: Sequence[Loop], place: Expr, element: Expr, count: int
) -> dict[Symbol, Expr] | None:
    """The loops by the number of an element, of which `place` is the one that a point has; None
    where points do not have exactly one element each, a different one, of `count`."""
    found: list[tuple[int, int, Symbol]] = []
    moves: dict[Symbol, Expr] = {}
    for symbol, size in loops:
        length = constant_value(size)
        if length is None:
            return None
        if length == 1:
            moves[symbol] = as_expr(0)
            continue
        zero, one = (substitute(place, {symbol: as_expr(n)}) for n in (0, 1))
        factor = constant_value(one - zero)
        if factor is None:
            return None
        found.append((factor, length, symbol))
    expected, rest = 1, place
    for factor, length, symbol in sorted(found, key=lambda row: row[0]):
        if factor != expected:
            return None
        expected *= length
        rest = rest - as_expr(symbol) * factor
        index = floor_div(element, factor)
        moves[symbol] = index if factor * length == count else modulo(index, length)
    rest = substitute(rest, moves)
    return moves if expected == count and constant_value(rest) == 0 else None


# --- private ---------------------------------------------------------------------------------


def _read_by(
    operands: Operands, computed: tuple[ComputedMatrix | None, ComputedMatrix | None]
) -> dict[Buffer, None]:
    """The buffers that the product reads, in order."""
    found: dict[Buffer, None] = {}
    for view, made in zip((operands.first, operands.second), computed, strict=True):
        reads = [view.buffer] if made is None else [load.buffer for load in loads(made.value)]
        found |= dict.fromkeys(reads)
    if operands.added is not None:
        found[operands.added.buffer] = None
    return found


def _is_row_major(target: Buffer, sizes: tuple[int, int, int]) -> bool:
    expected = 1
    if [constant_value(size) for size in target.shape] != list(sizes[-len(target.shape) :]):
        return False
    for size, stride in zip(reversed(target.shape), reversed(target.stride), strict=True):
        if constant_value(size) != 1 and constant_value(stride) != expected:
            return False
        expected *= constant_value(size) or 1
    return True


def _moves(
    kernel: Kernel, target: Buffer, at: tuple[Expr, Expr, Expr], sizes: tuple[int, int, int]
) -> dict[Symbol, Expr] | None:
    """The kernel's loops by the place in the product; None where a point does not read exactly one
    element, each a different one."""
    stores = [s for s in kernel.phases[0].body if isinstance(s, Store)]
    reads = [load for s in stores for load in loads(s.value) if load.buffer is target]
    places = {offset(target, load.coordinates) for load in reads}
    if len(places) != 1 or not all(map(is_in_order, reads)):
        return None
    (place,) = places
    loops, element = (*kernel.rows, *kernel.phases[0].loops), _element(at, sizes)
    return loops_at(loops, place, element, math.prod(sizes))


def _element(at: tuple[Expr, Expr, Expr], sizes: tuple[int, int, int]) -> Expr:
    """The number of an element of the result."""
    b, m, n = at
    return (b * sizes[1] + m) * sizes[2] + n


def _rounded(value: Scalar, operands: Operands, at: tuple[Expr, ...], dtype: torch.dtype) -> Scalar:
    """The product's element as the library gives it."""
    if operands.added is not None:
        if operands.adds_to_rounded:
            value = cast(cast(value, dtype), torch.float32)
        value = apply("add", value, cast(_element_of(operands.added, at), torch.float32))
    return cast(value, dtype)


def _element_of(view: BufferView, at: tuple[Expr, ...]) -> Scalar:
    """An element of a view, broadcast to the place."""
    inner = at[len(at) - len(view.shape) :]
    fixed = [as_expr(0) if constant_value(n) == 1 else c for c, n in zip(inner, view.shape)]
    place = as_expr(view.offset)
    for coordinate, stride in zip(fixed, view.stride, strict=True):
        place = place + coordinate * stride
    return Load(view.buffer, _unravelled(view.buffer, place))


def _unravelled(buffer: Buffer, place: Expr) -> tuple[Expr, ...]:
    """The coordinates of the element that is so many from the first one in memory."""
    coordinates = []
    for size, stride in zip(buffer.shape, buffer.stride, strict=True):
        step = constant_value(stride) or 0
        inside = place if step == 1 else (floor_div(place, step) if step else as_expr(0))
        coordinates.append(as_expr(0) if constant_value(size) == 1 else modulo(inside, size))
    return tuple(coordinates)


def _stores(
    kernel: Kernel, target: Buffer, value: Scalar, moves: dict[Symbol, Expr]
) -> tuple[Store, ...]:
    def read(node: Scalar, below: Any) -> Scalar:
        if isinstance(node, Load) and node.buffer is target:
            return value
        return replace_children(node, below)

    made = []
    for statement in kernel.phases[0].body:
        assert isinstance(statement, Store)
        moved = rebuild(substituted(statement.value, moves), read)
        coordinates = tuple([substitute(c, moves) for c in statement.coordinates])
        made.append(Store(statement.target, coordinates, moved, statement.origin))
    return tuple(made)
