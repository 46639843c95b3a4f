"""Writes through `x.data`: autograd does not know of them, and computes gradients from what is
written.

    y = x * x
    x.data.add_(1)      # the gradient of y is that of the new x

A graph saves what `x` was. Where its results are differentiated later, it ends before `x.data`,
which the program then really has: `x` is written to as in eager, also where it was saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.frames.control_signals import CannotRebuild
from braze.capture.training.autograd_history import holds_all_gradients
from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import Value, values_in
from braze.tracing.graph_recorder import Call, GraphRecorder
from braze.tracing.op_schema import OperatorKind, describe_op

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def check_data_writes(interpreter: Interpreter, results: Sequence[object]) -> None:
    """Raise CannotRebuild where an operator that autograd knows read, or made, what a write through
    `x.data` changed."""
    recorder = interpreter.tracer.recorder
    if not recorder.data_writes or holds_all_gradients(interpreter, results):
        return
    steps = _steps_of_changes(recorder)
    if steps:
        raise CannotRebuild("a backward after the frame may read it", min(steps), "data-write")


# --- private ---------------------------------------------------------------------------------


def _steps_of_changes(recorder: GraphRecorder) -> list[int]:
    """The steps that took the `x.data` of such writes."""
    makers = {value: call for call in recorder.calls for value in call[3] if value is not None}
    tracked = _tracked(recorder)
    known = [
        _touched(call, makers) if tracked.intersection(_made(call)) else ()
        for call in recorder.calls
    ]
    earlier: dict[Any, set[Value]] = {}
    found = []
    for write in recorder.data_writes:
        memory = earlier.setdefault(write.base, set())
        memory.add(_root(write.before, makers))
        if any(not memory.isdisjoint(values) for values in known[: write.calls]):
            found.append(write.step)
    return found


def _tracked(recorder: GraphRecorder) -> set[Value]:
    """The values that have a history."""
    tracked = {v for v in recorder.input_values if getattr(v.type, "requires_grad", False)}
    for call in recorder.calls:
        op, args, kwargs, _, _, grad_enabled = call
        if op is aten.detach.default or not grad_enabled or op in _NEW_MEMORY:
            continue
        if any(value in tracked for value in values_in((tuple(args), kwargs))):
            tracked.update(_made(call))
    return tracked


# They read the metadata of a tensor alone: what they make has no history.
_NEW_MEMORY = frozenset(
    {
        *(aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default),
        *(aten.full_like.default, aten.rand_like.default, aten.randn_like.default),
        *(aten.new_empty.default, aten.new_empty_strided.default, aten.new_zeros.default),
        *(aten.new_ones.default, aten.new_full.default),
    }
)


def _made(call: Call) -> list[Value]:
    return [value for value in call[3] if value is not None]


def _touched(call: Call, makers: dict[Value, Call]) -> set[Value]:
    """What a call reads and makes, views as what they view. A view itself reads nothing."""
    op, args, kwargs = call[:3]
    if _is_view(op):
        return set()
    return {_root(value, makers) for value in (*values_in((tuple(args), kwargs)), *_made(call))}


def _root(value: Value, makers: dict[Value, Call]) -> Value:
    """The value behind views, `detach()` among them."""
    while (call := makers.get(value)) is not None and _is_view(call[0]):
        value = call[1][0]
    return value


def _is_view(op: object) -> bool:
    return isinstance(op, torch._ops.OpOverload) and describe_op(op).kind is OperatorKind.VIEW
