"""Has weights packed before the kernels of products that multiply them, all by one call.

    kernel k1: b3 = x @ w0;  ...                 t0, t1 = braze.pack_weights([w0, w1], places)
    kernel k2: b4 = y @ w1;  ...         ->      kernel k1: b3 = x @ w0 packed in t0;  ...
                                                 kernel k2: b4 = y @ w1 packed in t1;  ...

The runtime keeps what it packed (`runtime/launch/packed_matrices.py`), and asks for all weights of
a graph at once whether they stay. What it has not packed is empty: kernels then do so themselves.
Left alone: batches of matrices, and what the program computes or writes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import torch

from braze.compat.torch.registered_ops import pack_weights
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall, LoopProgram
from braze.ir.kernels.schedule import PANEL, ExternStep, Kernel, Step
from braze.schedule.memory.inplace_inputs import Rewritten
from braze.schedule.simplify.normalize import Names
from braze.shapes.expr import constant_value


def find_weights(program: LoopProgram, final: Rewritten) -> frozenset[Buffer]:
    """What the program is given and does not write to."""
    given = {*program.inputs, *(buffer for buffer, _ in program.constants)}
    written = {*(buffer for buffer, _ in final.mutations), *final.in_place}
    written |= {buffer for buffer, _ in program.mutations}
    return frozenset([buffer for buffer in given - written if buffer.dtype is torch.float32])


def pack_once(final: Rewritten, names: Names) -> Rewritten:
    """The steps, behind a call that packs their weights, if there are any."""
    matrices: dict[_Matrix, Buffer] = {}
    steps: list[Step] = [_with_panels(step, matrices, names) for step in final.steps]
    if not matrices:
        return final
    both = zip(final.steps, steps, strict=True)
    made = {step: packed for step, packed in both if isinstance(packed, Kernel)}
    pairs = [(made[one], made[other]) for one, other in final.alike]
    alike = [pair for pair in pairs if len({_is_packed(each) for each in pair}) == 1]
    return replace(
        final,
        steps=(ExternStep(_call(matrices)), *steps),
        settled=final.settled + 1,
        alike=tuple(alike),
    )


# --- private ---------------------------------------------------------------------------------

# A weight's buffer; where the matrix begins, its rows, its columns, and its steps.
_Matrix: TypeAlias = tuple[Buffer, tuple[int, ...]]


def _with_panels(step: Step, matrices: dict[_Matrix, Buffer], names: Names) -> Step:
    if not isinstance(step, Kernel) or step.product is None or not step.product.stays:
        return step
    second = step.product.second
    numbers = (second.offset, *second.shape, *second.stride)
    known = [n for n in map(constant_value, numbers) if n is not None]
    if len(known) != len(numbers):
        return step
    key = second.buffer, tuple(known)
    if key not in matrices:
        _, rows, columns, *_ = known
        matrices[key] = names.buffer(second.buffer, (rows * -(-columns // PANEL) * PANEL,))
    packed = matrices[key]
    product = replace(step.product, packed=packed)
    return replace(step, product=product, memory=(*step.memory, packed))


def _is_packed(step: Step) -> bool:
    return isinstance(step, Kernel) and step.product is not None and step.product.packed is not None


def _call(matrices: dict[_Matrix, Buffer]) -> ExternCall:
    buffers = list(dict.fromkeys(buffer for buffer, _ in matrices))
    number = {buffer: n for n, buffer in enumerate(buffers)}
    places = [n for buffer, numbers in matrices for n in (number[buffer], *numbers)]
    args = (_whole(buffers), places)
    return ExternCall(pack_weights, args, (), tuple(matrices.values()))


def _whole(buffers: Sequence[Buffer]) -> list[BufferView]:
    return [BufferView(b, b.shape, b.stride, 0, b.dtype) for b in buffers]
