"""Functions of the program, traced as regions: branches and bodies of control flow.

A region may only compute. What writes to what existed before, draws random numbers or has other
effects breaks the graph before the call that would make the region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from braze.capture.frames.control_signals import BreakRequested
from braze.compat.torch.aten import aten
from braze.ir.captured.frame import TorchCall
from braze.ir.graphs.custom_gradient import CustomGradient
from braze.ir.graphs.graph import Value, values_in
from braze.ir.graphs.op_effects import has_effects
from braze.ir.graphs.region import RegionKind, RegionOp
from braze.ir.types import TensorType
from braze.tracing.fake_tensor import Place, TracedTensor, new_fake
from braze.tracing.graph_recorder import Call
from braze.tracing.regions import RecordedRegion, record_region, trace_region
from braze.tracing.shape_rules.strides import as_operand, contiguous, is_dense

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def _breaks(detail: str) -> BaseException:
    return BreakRequested("condition", detail)


class FunctionTrace(NamedTuple):
    """One function of the program, traced. made: what it returned; begun: the number of its first
    operator; calls: how many calls of torch's the frame had noted before; touched: fake tensors
    that it read, by value; first: values made in it have this number or a larger one."""

    made: Any
    begun: int
    calls: int
    touched: dict[Value, TracedTensor]
    first: int


def trace_function(
    interpreter: Interpreter,
    function: Callable[..., object],
    operands: Sequence[object],
    writes: Callable[[str], BaseException] = _breaks,
) -> FunctionTrace:
    """Interpret a function that may only compute. writes: what is raised where it writes."""
    tracer, side_effects = interpreter.tracer, interpreter.side_effects
    recorder = tracer.recorder
    begun, first = len(recorder.calls), recorder.next_number
    noted, state, effects = len(interpreter.calls), side_effects.extent(), _effects(interpreter)
    outer, tracer.touched = tracer.touched, {}
    asking, recorder.first_values = recorder.first_values, {}
    try:
        made = interpreter.call(function, *operands)
    finally:
        found, tracer.touched = tracer.touched, outer
        written, recorder.first_values = recorder.first_values, asking
    is_written = any(p.input_index >= 0 or v.index < first for p, v in written.items())
    if is_written or side_effects.extent() != state:
        raise writes("a branch writes to what existed before")
    if _effects(interpreter) != effects:
        raise BreakRequested("condition", "a branch logs, raises or draws numbers of Python's")
    ops = [call[0] for call in recorder.calls[begun:]]
    if any(type(op) is CustomGradient for op in ops):
        raise BreakRequested("condition", "a branch calls a custom autograd function")
    if any(has_effects(op) for op in ops):
        raise BreakRequested("condition", "a branch draws random numbers, or has other effects")
    if outer is not None:
        outer.update(found)
    touched = {fake.place.value: fake for fake in found.values()}
    return FunctionTrace(made, begun, noted, touched, first)


def result_type(leaf: Any) -> TensorType:
    """The type of a result: dense, whatever the branch gave."""
    kind: TensorType = leaf.place.type
    if is_dense(kind.shape, kind.stride):
        return TensorType(kind.dtype, kind.shape, kind.stride, kind.device)
    return contiguous(kind.dtype, as_operand(kind).shape, kind.device)


def fresh_operand(interpreter: Interpreter, kind: TensorType, flows: bool) -> TracedTensor:
    """A fake tensor for what a turn of a loop is given. flows: gradients flow through it."""
    value = interpreter.tracer.recorder.new_value(kind)
    fake = new_fake(Place(kind, value, 0, True))
    if flows:
        fake.requires_grad_()
    return fake


def as_region(
    interpreter: Interpreter,
    trace: FunctionTrace,
    leaves: Sequence[Any],
    kinds: Sequence[TensorType],
) -> RecordedRegion:
    """What a function computed, as a region with these tensors for results."""
    tracer = interpreter.tracer
    for leaf in leaves:
        trace.touched.setdefault(leaf.place.value, leaf)
    values, _ = tracer.bind_tracked(leaves)
    region: RecordedRegion = record_region(tracer.recorder, trace.begun, values, kinds)
    return region


def region_operator(
    interpreter: Interpreter,
    kind: RegionKind,
    regions: Sequence[RecordedRegion],
    inputs: Sequence[Value],
    differentiable: Sequence[bool],
    counts: tuple[int, int] = (0, 0),
) -> RegionOp:
    """The operator that runs the regions. inputs: what they read; counts: how many of these a scan
    carries, and takes row by row."""
    for value in inputs:
        if type(value.type) is not TensorType:
            raise BreakRequested("condition", "a branch reads a number that the graph computes")
    differentiate = interpreter.request.differentiate_region
    assert differentiate is not None
    return RegionOp(
        kind,
        tuple([region.graph(inputs) for region in regions]),
        tuple(differentiable),
        differentiate,
        is_open=interpreter.guard_context.sizes.facts is not None,
        carried=counts[0],
        rows=counts[1],
    )


def region_operands(
    interpreter: Interpreter,
    reads: Sequence[Value],
    touched: dict[Value, TracedTensor],
    begun: int,
    op: RegionOp,
) -> list[object]:
    """A fake tensor for each value that a region reads from outside."""
    unknown = [value for value in reads if value not in touched]
    if unknown and interpreter.request.keeps_unread:
        raise BreakRequested("condition", "a branch reads what no call of torch's has made")
    if unknown and any(op.differentiable):
        needing = _with_history(interpreter.tracer.recorder.calls[:begun])
        if any(_needs(value, needing) for value in unknown):
            raise BreakRequested("condition", "gradients flow into a branch by another's memory")
    return [touched[v] if v in touched else _fake_of(v) for v in reads]


def _fake_of(value: Value) -> TracedTensor:
    assert isinstance(value.type, TensorType)
    return new_fake(Place(value.type, value))


def call_recorded(
    interpreter: Interpreter,
    op: RegionOp,
    operands: Sequence[Any],
    values: Sequence[Value],
    kinds: Sequence[TensorType],
    noted: int,
) -> list[Any]:
    """Record the node of a region, and its call in the place of the calls in its functions."""
    origin = interpreter.tracer.origin = interpreter.origin(op.kind.value)
    results = trace_region(interpreter.tracer, op, operands, (), kinds, values)
    del interpreter.calls[noted:]
    note = interpreter.tensor_names.noted
    given = (tuple(map(note, operands)), ())
    state = interpreter.state_of_call()
    made = tuple([note(result, True) for result in results])
    interpreter.calls.append(TorchCall(op, given, (), made, origin, *state))
    return results


# --- private ---------------------------------------------------------------------------------


def _effects(interpreter: Interpreter) -> tuple[int, ...]:
    """How often so far something was put off, drawn or assumed."""
    return len(interpreter.deferred_calls), len(interpreter.draws), len(interpreter.assumed)


def _with_history(calls: Sequence[Call]) -> set[Value]:
    """What calls made that gradients may flow through."""
    found: set[Value] = set()
    for call in calls:
        read = values_in((tuple(call[1]), call[2]))
        if call[0] is not aten.detach.default and any(_needs(value, found) for value in read):
            found.update(value for value in call[3] if value is not None)
    return found


def _needs(value: Value, needing: set[Value]) -> bool:
    kind = value.type
    if not isinstance(kind, TensorType):
        return False
    if not (kind.dtype.is_floating_point or kind.dtype.is_complex):
        return False
    return kind.requires_grad or value in needing
