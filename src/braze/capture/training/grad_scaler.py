"""`GradScaler.step()`: the optimizer's step is made, and its writes are chosen by a tensor.

    if not found_inf.item():            %9 = add(%p, %8)
        optimizer.step()         ->     %10 = where(%found, %p, %9)      # written to the parameter

A step that is left out leaves every tensor as it was. On the CPU its writes are not counted either:
behind the graph `found` is looked at, which on a device would wait for that. Refused, by a break: a
step that changes something else than tensors, as the first one does, which makes the optimizer's
state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import unnoted_call
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.training.if_conversion import mark_conditional
from braze.capture.training.version_counters import take_back_counts
from braze.compat import private_names as private
from braze.compat.torch.aten import aten
from braze.compat.torch.autograd_engine import VERSION
from braze.ir.graphs.graph import Value
from braze.tracing.fake_tensor import Place, TracedTensor

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.tracing.tracer import Tracer

_MAYBE_STEP: Any = private.maybe_opt_step


@answers(_MAYBE_STEP)
def maybe_step(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """The step of an optimizer whose gradients were looked at for infinities."""
    _, optimizer, state, *rest = args
    found = interpreter.item(state, "found_inf_per_device")
    flags = list(interpreter.side_effects.contents(found).values())
    if not flags or not all(type(flag) is TracedTensor for flag in flags):
        return interpreter.call_python(_MAYBE_STEP, args, kwargs)
    tracer = interpreter.tracer
    skips = flags[0]
    for flag in flags[1:]:
        skips = unnoted_call(interpreter, torch.add, (skips, flag.to(skips.device)), {})
    found = unnoted_call(interpreter, torch.ne, (skips.reshape(()), 0), {})
    skips = tracer.value_of(found)
    versions = {id(fake): VERSION(fake) for fake in _outside(tracer)}
    written = _written_by(interpreter, interpreter.attribute(optimizer, "step"), rest, kwargs)
    with torch.no_grad():
        for place, before in written:
            value = tracer.recorder.read(place)
            chosen = tracer.recorder.emit(aten.where.self, (skips, before, value), {})
            tracer.recorder.write(place, chosen)
    by = [VERSION(fake) - versions.get(id(fake), 0) for fake in _outside(tracer)]
    counted = tuple([(x, count) for x, count in zip(_outside(tracer), by) if count])
    if counted and found.device.type == "cpu":
        interpreter.deferred_calls.append((take_back_counts, (found, *zip(*counted))))
    return None


def _outside(tracer: Tracer) -> list[TracedTensor]:
    """The fake tensors of tensors from outside; what the step finds first comes last."""
    return [x for x, real in tracer.inputs if real is not None and not x.is_inference()]


def _written_by(
    interpreter: Interpreter, step: object, args: list[object], kwargs: dict[str, object]
) -> list[tuple[Place, Value]]:
    """Make the step. Gives the memory that it wrote to and did not make, with what it held."""
    recorder = interpreter.tracer.recorder
    start, marks, noted = recorder.next_number, interpreter.marks(), len(interpreter.calls)
    recorder.first_values = {}
    try:
        result = interpreter.call(step, *args, **kwargs)
        mark_conditional(interpreter, noted)
        written: dict[Place, Value] = recorder.first_values
    finally:
        recorder.first_values = None
    if result is not None or interpreter.marks() != marks:
        detail = "whether an optimizer's step that changes more than tensors is left out"
        raise BreakRequested("data-dependent-branch", detail)
    return [
        (place, value)
        for place, value in written.items()
        if value.index < start or place.input_index >= 0
    ]
