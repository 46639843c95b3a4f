"""Products of matrices and what is done with each of their elements, as one kernel.

    b2 = aten.mm(x, w)
    kernel k1: rows i0 < 4096; for r0 < 768: y[i0, r0] = gelu(b2[i0, r0])
becomes, if it is chosen,
    kernel k1: b3 = x @ w;  for m < 4096, n < 768: y[m, n] = gelu(bf16(b3[m, n]))

What is read of the product keeps the rounding of the library's result. `addmm` and `baddbmm` add
their first argument before that, once, as the library does.
Refused: sizes that are symbols, results with other readers, kernels that fold, and kernels that
write to inputs in place, which the product may still read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch

from braze.ir.loops import Buffer, BufferView, ExternCall, Load, LoopProgram, Scalar
from braze.ir.scalars import apply, cast, loads, rebuild, replace_children
from braze.ir.scalars import substitute_symbols as substituted
from braze.ir.schedule import ExternStep, Kernel, Loop, Phase, Product, Step, Store, offset
from braze.schedule.memory import written
from braze.schedule.normalise import Names
from braze.schedule.use import extern_reads
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, floor_div, modulo
from braze.shapes.substitution import substitute

# The kernel of both, the call and the kernel that are there without it -> whether to take it.
ChooseProduct: TypeAlias = Callable[[Kernel, ExternCall, Kernel], bool]

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Operator -> the place of the first matrix among its arguments.
_PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}


def fuse_products(
    program: LoopProgram, steps: Sequence[Step], settled: int, names: Names, choose: ChooseProduct
) -> list[Step]:
    """The steps with the products that are chosen; as many fewer as there are of those. Nothing
    from the step `settled` on is touched."""
    readers = _readers(steps)
    kept = {view.buffer for view in program.outputs} | {v.buffer for _, v in program.mutations}
    made: dict[int, Kernel] = {}
    gone: set[int] = set()
    for number, step in enumerate(steps[:settled]):
        if not isinstance(step, ExternStep) or len(step.call.outputs) != 1:
            continue
        (target,) = step.call.outputs
        reading = readers.get(target, []) if target is not None else []
        if len(reading) != 1 or reading[0] >= settled or reading[0] in made:
            continue
        (at,) = reading
        kernel = steps[at]
        assert target is not None
        if not isinstance(kernel, Kernel) or not all(map(_is_known, kernel.memory)):
            continue
        fused = _fused(step.call, kernel, names, target in kept)
        if fused is not None and choose(fused, step.call, kernel):
            made[at] = fused
            gone.add(number)
    return [made.get(number, step) for number, step in enumerate(steps) if number not in gone]


# --- private ---------------------------------------------------------------------------------


def _readers(steps: Sequence[Step]) -> dict[Buffer, list[int]]:
    found: dict[Buffer, list[int]] = {}
    for number, step in enumerate(steps):
        touched = step.memory if isinstance(step, Kernel) else set(extern_reads(step.call))
        for buffer in touched:
            found.setdefault(buffer, []).append(number)
    return found


@final
@dataclass(frozen=True, slots=True)
class _Operands:
    """Of a product: its matrices, what is added (None: nothing), and its extents."""

    first: BufferView
    second: BufferView
    added: BufferView | None
    batch: int
    m: int
    n: int


def _operands(call: ExternCall) -> _Operands | None:
    place = _PRODUCTS.get(call.op._schema.name)
    if place is None or call.op._schema.overload_name not in ("", "default") or call.kwargs:
        return None
    if len(call.args) != place + 2 or not all(type(x) is BufferView for x in call.args):
        return None
    first, second = call.args[place:]
    added = call.args[0] if place else None
    views = [first, second, *([added] if added is not None else [])]
    if not all(_is_plain(view, first.dtype) for view in views) or first.dtype not in _DTYPES:
        return None
    *batch, m, _ = map(constant_value, first.shape)
    n = constant_value(second.shape[-1])
    assert m is not None and n is not None
    return _Operands(first, second, added, (batch or [1])[0] or 0, m, n)


def _is_plain(view: BufferView, dtype: torch.dtype) -> bool:
    sizes = [*view.shape, *view.stride, view.offset]
    known = all(constant_value(size) is not None for size in sizes)
    return known and view.dtype == dtype == view.buffer.dtype and not view.is_number


def _fused(call: ExternCall, kernel: Kernel, names: Names, is_kept: bool) -> Kernel | None:
    """The kernel of both; None where they cannot be one. is_kept: the product's own result is
    needed, too."""
    operands = _operands(call)
    (target,) = call.outputs
    assert target is not None
    if operands is None or not _is_pointwise(kernel):
        return None
    sizes = (operands.batch, operands.m, operands.n)
    if not _is_row_major(target, sizes) or min(sizes) < 1:
        return None
    read = {operands.first.buffer, operands.second.buffer}
    if read & {*written(kernel)}:
        return None
    b, m, n = (names.symbol(name, size) for name, size in zip(("pb", "pm", "pn"), sizes))
    place = (as_expr(b if operands.batch > 1 else 0), as_expr(m), as_expr(n))
    moves = _moves(kernel, target, place, sizes)
    if moves is None:
        return None
    sums = names.buffer(target, tuple(target.shape), dtype=torch.float32)
    at = place[-len(target.shape) :]
    value = _rounded(Load(sums, at), operands.added, at, target.dtype)
    stores = _stores(kernel, target, value, moves)
    if is_kept:
        stores = (Store(target, at, value, call.origin), *stores)
    if not all(_is_in_order(load) for s in stores for load in loads(s.value)):
        return None
    views = [operands.first, operands.second]
    views += [operands.added] if operands.added is not None else []
    memory = [view.buffer for view in views] + [target] * is_kept
    memory += [buffer for buffer in kernel.memory if buffer is not target]
    rows: tuple[Loop, ...] = ((b, operands.batch),) if operands.batch > 1 else ()
    phase = Phase(((m, operands.m), (n, operands.n)), stores)
    product = Product(sums, operands.first, operands.second)
    return Kernel(kernel.name, rows, (phase,), tuple(dict.fromkeys(memory)), product=product)


def _is_pointwise(kernel: Kernel) -> bool:
    (phase, *others) = kernel.phases
    if others or phase.row or kernel.columns or kernel.scratch or kernel.product is not None:
        return False
    return all(isinstance(s, Store) and s.target in kernel.memory for s in phase.body)


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
    if len(places) != 1 or not all(map(_is_in_order, reads)):
        return None
    (place,) = places
    found: list[tuple[int, int, Symbol]] = []
    moves: dict[Symbol, Expr] = {}
    for symbol, size in (*kernel.rows, *kernel.phases[0].loops):
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
    b, m, n = at
    element = (b * sizes[1] + m) * sizes[2] + n
    expected = 1
    rest = place
    for factor, length, symbol in sorted(found, key=lambda row: row[0]):
        if factor != expected:
            return None
        expected *= length
        rest = rest - as_expr(symbol) * factor
        index = floor_div(element, factor)
        is_whole = factor * length == math.prod(sizes)
        moves[symbol] = index if is_whole else modulo(index, length)
    rest = substitute(rest, moves)
    return moves if expected == math.prod(sizes) and constant_value(rest) == 0 else None


def _rounded(
    value: Scalar, added: BufferView | None, at: tuple[Expr, ...], dtype: torch.dtype
) -> Scalar:
    """The product's element as the library gives it."""
    if added is not None:
        value = apply("add", value, cast(_element(added, at), torch.float32))
    return cast(value, dtype)


def _element(view: BufferView, at: tuple[Expr, ...]) -> Scalar:
    """An element of a view, broadcast to the place."""
    inner = at[len(at) - len(view.shape) :]
    fixed = [as_expr(0) if constant_value(n) == 1 else c for c, n in zip(inner, view.shape)]
    place = as_expr(view.offset)
    for coordinate, stride in zip(fixed, view.stride, strict=True):
        place = place + coordinate * stride
    coordinates = []
    for size, stride in zip(view.buffer.shape, view.buffer.stride, strict=True):
        step = constant_value(stride) or 0
        inside = place if step == 1 else (floor_div(place, step) if step else as_expr(0))
        coordinates.append(as_expr(0) if constant_value(size) == 1 else modulo(inside, size))
    return Load(view.buffer, tuple(coordinates))


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


def _is_known(buffer: Buffer) -> bool:
    return all(constant_value(n) is not None for n in (*buffer.shape, *buffer.stride))


def _is_in_order(load: Load) -> bool:
    return all(isinstance(c, Expr) for c in load.coordinates)
