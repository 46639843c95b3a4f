"""Regions in a trace: calls that were recorded as a graph of their own, and nodes that run it.

    %2 = mm(%0, %1)              graph { input %0; input %1
    %3 = relu(%2)         ->         %2 = mm(%0, %1); %3 = relu(%2); output %3 }

The calls stay in the trace as well, where nothing reads them, unless memory from outside was read
there for the first time since it changed: what holds such a value goes on to hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import torch

from braze.compat.torch.aten import aten
from braze.frozen import frozen
from braze.ir.graphs.graph import Graph, Output, Value, values_in
from braze.ir.graphs.region import RegionOp, call_region
from braze.ir.types import TensorType
from braze.tracing.errors import Untraceable
from braze.tracing.fake_tensor import Place, TracedTensor, new_fake
from braze.tracing.graph_recorder import Call, GraphRecorder, node_of
from braze.tracing.op_schema import OperatorKind, describe_op
from braze.tracing.shape_rules.strides import as_operand, contiguous

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer


@final
@frozen
class RecordedRegion:
    """Calls of a trace, and the values of their results. reads: what they, or the results, have
    from outside, in order."""

    calls: tuple[Call, ...]
    results: tuple[Value, ...]
    reads: tuple[Value, ...]

    def graph(self, inputs: Sequence[Value]) -> Graph:
        """The calls as a graph; inputs: all that it may read."""
        outputs = tuple(map(Output, self.results))
        return Graph(tuple(inputs), (), tuple(map(node_of, self.calls)), outputs, ())


def record_region(
    recorder: GraphRecorder, begun: int, results: Sequence[Value], types: Sequence[TensorType]
) -> RecordedRegion:
    """The calls from a number on as a region. Results become tensors of their own, of these
    types."""
    made: list[Value] = []
    seen: set[Value] = set()
    for value, type in zip(results, types, strict=True):
        value = recorder.restride(value, type)
        if value in seen or not _is_own(recorder, value, begun):
            value = recorder.emit(aten.clone.default, (value,), {})
            value = recorder.restride(value, type)
        seen.add(value)
        made.append(value)
    calls = _with_numbers(recorder, _live(recorder.calls[begun:], made))
    inside = {value for call in calls for value in call[3]}
    read = [value for call in calls for value in values_in((tuple(call[1]), call[2]))]
    reads = dict.fromkeys(value for value in read if value not in inside)
    recorder.regions.append((begun, len(recorder.calls)))
    return RecordedRegion(calls, tuple(made), tuple(reads))


def trace_region(
    tracer: Tracer,
    op: RegionOp,
    operands: Sequence[object],
    sizes: Sequence[object],
    types: Sequence[object],
    values: Sequence[Value] | None = None,
) -> list[TracedTensor]:
    """Record the call of a region, with what autograd notes of it. values: what the operands hold,
    where that is known."""

    known: dict[RegionOp, Sequence[Any]] = {} if values is None else {op: values}

    def execute(
        op: RegionOp, given: Sequence[object], sizes: Sequence[object], types: Sequence[object]
    ) -> Any:
        if op.is_open and op not in known:
            raise Untraceable("gradients through a region while its sizes are symbols")
        return _recorded(tracer, op, given, known.get(op, given), sizes, types)

    return list(call_region(op, operands, sizes, types, execute))


def makes_own(op: torch._ops.OpOverload | RegionOp) -> bool:
    """Whether an operator's results are in memory of their own."""
    return isinstance(op, RegionOp) or describe_op(op).kind is OperatorKind.FUNCTIONAL


# --- private ---------------------------------------------------------------------------------


def _recorded(
    tracer: Tracer,
    op: RegionOp,
    operands: Sequence[Any],
    values: Sequence[object],
    sizes: Sequence[object],
    types: Sequence[object],
) -> list[TracedTensor]:
    tracked = any(op.differentiable) and any(operand.requires_grad for operand in operands)
    kinds = tuple(map(_type, types))
    with torch.set_grad_enabled(tracked or torch.is_grad_enabled()):
        arguments = (tuple(tracer.bind(values)), tuple(sizes))
        made = tracer.recorder.emit_typed(op, arguments, {}, kinds)
    flows = [tracked and each for each in op.differentiable]
    return [new_fake(Place(v.type, v, 0, each)) for v, each in zip(made, flows, strict=True)]


def _type(like: object) -> TensorType:
    if isinstance(like, TensorType):
        return like
    assert isinstance(like, TracedTensor), like
    kind: TensorType = like.place.type
    return contiguous(kind.dtype, as_operand(kind).shape, kind.device)


def _is_own(recorder: GraphRecorder, value: Value, begun: int) -> bool:
    """Whether a value is in memory that a call of the region made."""
    maker = next((c for c in recorder.calls[begun:] if value in c[3]), None)
    return maker is not None and makes_own(maker[0])


def _with_numbers(recorder: GraphRecorder, calls: Sequence[Call]) -> tuple[Call, ...]:
    """The calls, behind those that compute the numbers that they read from outside: a region is
    given tensors. A float from outside that changes is in one (`symbolic_floats.py`)."""
    inside = {value for call in calls for value in call[3]}
    waiting = [value for call in calls for value in values_in((tuple(call[1]), call[2]))]
    before: list[Call] = []
    while waiting:
        value = waiting.pop()
        maker = None if isinstance(value.type, TensorType) else recorder.maker(value)
        if value in inside or maker is None:
            continue
        before.append(maker)
        inside.update(made for made in maker[3] if made is not None)
        waiting += values_in((tuple(maker[1]), maker[2]))
    before.sort(key=lambda call: min(made.index for made in call[3] if made is not None))
    return *before, *calls


def _live(calls: Sequence[Call], results: Sequence[Value]) -> list[Call]:
    """The calls that results need."""
    used, kept = set(results), []
    for call in reversed(calls):
        if any(value in used for value in call[3]):
            kept.append(call)
            used.update(values_in((tuple(call[1]), call[2])))
    kept.reverse()
    return kept
