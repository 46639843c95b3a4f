"""Finds extern calls that can write their results into a planned buffer.

An operator qualifies by its own `out=` overload: one result, same arguments, and no tag
`generated`, which marks overloads that compute elsewhere and copy. A call whose result is its first
argument is made by the operator's in-place form.
"""

from __future__ import annotations

import types

import torch

from braze.compat.torch.aten import aten
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall
from braze.ir.kernels.schedule import ExternStep
from braze.ir.types import Size
from braze.schedule.memory.allocate import Plannable

# Operators that copy their first argument and change elements of the copy.
IN_PLACE_FORMS = types.MappingProxyType(
    {
        aten.index_put.default: aten.index_put_.default,
        aten.index_add.default: aten.index_add_.default,
        aten.index_copy.default: aten.index_copy_.default,
        aten.index_reduce.default: aten.index_reduce_.default,
        aten.masked_scatter.default: aten.masked_scatter_.default,
        aten.put.default: aten.put_.default,
        aten.scatter.src: aten.scatter_.src,
        aten.scatter.value: aten.scatter_.value,
        aten.scatter_add.default: aten.scatter_add_.default,
        aten.scatter_reduce.two: aten.scatter_reduce_.two,
    }
)


def step_of(call: ExternCall) -> ExternStep:
    """The step of a call whose results ATen allocates, if it makes any."""
    first = call.args[0] if call.args else None
    if isinstance(first, BufferView) and first.buffer in call.outputs:
        return ExternStep(call, in_place_op=IN_PLACE_FORMS[call.op])
    return ExternStep(call)


def plan_extern(call: ExternCall, outside: set[Buffer], plannable: Plannable) -> ExternStep:
    """The step of a call; `outside` are the buffers that the caller gets."""
    if step_of(call).in_place_op is not None:
        return step_of(call)
    target = call.outputs[0] if len(call.outputs) == 1 else None
    if target is None or target in outside or not plannable(target):
        return ExternStep(call)
    if not _is_dense(target):
        return ExternStep(call)
    return ExternStep(call, _out_overload(call.op))


# --- private ---------------------------------------------------------------------------------

_PACKETS = frozenset(f"aten::{name}" for name in "mm bmm addmm baddbmm addmv mv addbmm dot".split())


def _out_overload(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    schema = op._schema
    if schema.name not in _PACKETS or schema.overload_name not in ("", "default"):
        return None
    packet = op.overloadpacket
    if "out" not in packet.overloads():
        return None
    candidate = packet.out
    return None if torch.Tag.generated in candidate.tags else candidate


def _is_dense(buffer: Buffer) -> bool:
    """Contiguous: the layout that the operators above give their results."""
    expected: Size = 1
    for size, stride in zip(reversed(buffer.shape), reversed(buffer.stride)):
        if size != 1 and stride != expected:
            return False
        expected = expected * size
    return True
