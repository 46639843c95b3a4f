"""Extern calls that can write into a planned buffer.

An operator qualifies by its own `out=` overload: one result, same arguments, and no tag
`generated`, which marks overloads that compute elsewhere and copy.
"""

from __future__ import annotations

import torch

from braze.ir.loops import Buffer, ExternCall
from braze.ir.schedule import ExternStep
from braze.ir.types import Size
from braze.schedule.memory import Plannable


def plan_extern(call: ExternCall, outside: set[Buffer], plannable: Plannable) -> ExternStep:
    """The step of a call; `outside` are the buffers that the caller gets."""
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
