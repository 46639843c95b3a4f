"""Finds operands of matrix products that the product's kernel may compute instead of loading.

    kernel k0: for i0 < 96, r0 < 64: b4[i0, r0] = bf16(f32(w[i0, r0]) * s[i0])
    b5 = aten.mm(x, b4 transposed)
becomes, for the second matrix over k and n,
    [k, n]: bf16(f32(w[n, k]) * s[n])

The element keeps the rounding that it would have had in memory.
Refused: kernels that fold, elements that are looked up, or of something that the same kernel
writes, and matrices that several stores fill, or one in part.
"""

from __future__ import annotations

import math

from braze.ir.kernels.loops import Apply, Buffer, BufferView, Cast, Guarded, Index, Literal, Load
from braze.ir.kernels.scalars import loads, substitute_symbols, walk
from braze.ir.kernels.schedule import ComputedMatrix, Kernel, Loop, Phase, Store, offset
from braze.schedule.matmul.matmul_kernel import is_in_order, is_pointwise, loops_at
from braze.schedule.memory.allocate import written
from braze.shapes.expr import Symbol, as_expr, constant_value
from braze.shapes.substitution import substitute

_NODES = (Literal, Index, Load, Apply, Cast, Guarded)


def computed_operand(kernel: Kernel, view: BufferView, number: int) -> ComputedMatrix | str:
    """The matrix that `view` shows of what the kernel writes; or why it has to be in memory.
    number: of the matrix in the product; what it is called by depends on nothing else, so that
    products of one form are one text."""
    store = _store(kernel, view.buffer)
    if isinstance(store, str):
        return store
    sizes = [constant_value(size) for size in view.shape]
    loops: list[Loop] = []
    element = as_expr(view.offset)
    for size, stride, prefix in zip(sizes, view.stride, ("pb", "pr", "pc")[-len(sizes) :]):
        assert size is not None
        if prefix == "pb" and size == 1:
            continue
        symbol = Symbol(f"{prefix}{number}", 0, size - 1)
        loops.append((symbol, size))
        element = element + as_expr(symbol) * stride
    count = math.prod([constant_value(size) or 0 for size in view.buffer.shape])
    place = offset(view.buffer, store.coordinates)
    moves = loops_at((*kernel.rows, *kernel.phases[0].loops), place, element, count)
    if moves is None:
        return "its elements are not numbered as the kernel's points"
    return ComputedMatrix(tuple(loops), substitute_symbols(store.value, moves))


def is_read_in_order(computed: ComputedMatrix) -> bool:
    """Whether neighbours of a column, of a second matrix, are neighbours in all that it reads, or
    the same element."""
    (row, _), _ = computed.loops[-2:]
    for load in loads(computed.value):
        place = offset(load.buffer, load.coordinates)
        step = constant_value(substitute(place, {row: row + 1}) - place)
        if step not in (0, 1):
            return False
    return True


def without_store(kernel: Kernel, target: Buffer) -> Kernel | None:
    """A kernel of points that writes all but the target; None where nothing is left."""
    (phase,) = kernel.phases
    body = tuple([s for s in phase.body if s.target is not target])
    stores = [s for s in body if isinstance(s, Store)]
    if not stores:
        return None
    touched = {load.buffer for s in stores for load in loads(s.value)} | {s.target for s in stores}
    memory = tuple([buffer for buffer in kernel.memory if buffer in touched])
    phases = (Phase(phase.loops, body),)
    return Kernel(kernel.name, kernel.rows, phases, memory, chunks=kernel.chunks)


# --- private ---------------------------------------------------------------------------------


def _store(kernel: Kernel, target: Buffer) -> Store | str:
    """The one store that fills the target by points."""
    if not is_pointwise(kernel):
        return "what makes it is no kernel of points"
    found = [s for s in kernel.phases[0].body if isinstance(s, Store) and s.target is target]
    if len(found) != 1:
        return "several stores fill it"
    if not all(isinstance(node, _NODES) for node in walk(found[0].value)):
        return "an element needs more than reads and operators"
    reads = list(loads(found[0].value))
    if not reads or not all(map(is_in_order, reads)):
        return "its elements are looked up, or read nothing"
    own = {*written(kernel)}
    if any(load.buffer in own for load in reads) or _is_read(kernel, target):
        return "the kernel that makes it reads what it writes"
    return found[0]


def _is_read(kernel: Kernel, target: Buffer) -> bool:
    stores = [s for s in kernel.phases[0].body if isinstance(s, Store)]
    return any(load.buffer is target for s in stores for load in loads(s.value))
