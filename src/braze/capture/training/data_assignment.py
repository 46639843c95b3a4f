"""`x.data = y`: the tensor `x` names the memory of `y` from then on.

What autograd and other holders know of the object stays: its class, its history, its gradient and
its version counter. A capture gives the fake tensor another place, a view of that of `y`, and
assigns
behind the graph. Breaks where autograd would have to tell `x` from `y`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.torch_calls import ask_view, leaf_call, traced
from braze.capture.frames.control_signals import BreakRequested
from braze.compat.torch.aten import aten
from braze.compat.torch.autograd_engine import VERSION
from braze.compat.torch.tensor_abi import DATA, PLAIN_TENSOR_CLASSES
from braze.tracing.fake_tensor import TracedTensor, new_fake
from braze.tracing.finalize import used_values

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.tracing.tracer import Tracer

_DETACH = aten.detach.default


def data_of(interpreter: Interpreter, tensor: Any, slot: Any) -> Any:
    """`tensor.data`: its memory, with a version counter of its own. slot: `Tensor.data`."""
    place = tensor.place
    given_at, place.given_at = place.given_at, -1
    try:
        found = leaf_call(interpreter, slot.__get__, (tensor,), {})
    finally:
        place.given_at = given_at
    if type(found) is TracedTensor:
        found.place.data_step = interpreter.outer_step
    return found


def assign_data(interpreter: Interpreter, tensor: Any, value: object) -> None:
    """`tensor.data = value`."""
    reason = _refusal(interpreter, tensor, value)
    if reason:
        raise BreakRequested("unsupported-tensor", f"assigning Tensor.data {reason}")
    version = tensor.place.given_at
    if version < 0:
        version = VERSION(tensor)
        _leave_memory(interpreter.tracer, tensor)
    memory = data_of(interpreter, value, DATA)
    interpreter.tensor_names.rename(tensor, memory)
    given = memory.place
    place = given.parent.view(given.type, given.value, given.offset, given.step, False)
    place.version, place.data_step, place.given_at = given.version, given.data_step, version
    with interpreter.tracer:
        tensor.become(place)
    interpreter.deferred_calls.append((set_data, (tensor, memory)))


def with_counts(deferred_calls: Sequence[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Calls behind the graph; then tensors that were given memory count the writes to them: to the
    graph these are writes to the memory's own tensor."""
    yield from deferred_calls
    for tensor in {
        id(args[0]): args[0] for call, args in deferred_calls if call is set_data
    }.values():
        if (count := VERSION(tensor) - tensor.place.given_at) > 0:
            yield add_versions, (tensor, count)


def set_data(tensor: torch.Tensor, memory: torch.Tensor) -> None:
    """`tensor.data = memory`, without code of a subclass."""
    DATA.__set__(tensor, memory)


def add_versions(tensor: torch.Tensor, count: int) -> None:
    """Count writes to a tensor that happened under another name."""
    for _ in range(count):
        torch.autograd.graph.increment_version(tensor)


def _refusal(interpreter: Interpreter, tensor: Any, value: Any) -> str:
    """Why the graph cannot do it; empty if it can."""
    guard_context, tracer = interpreter.guard_context, interpreter.tracer
    if type(value) is not TracedTensor or tensor is value:
        return "from what is no other tensor"
    for one in (tensor, value):
        if interpreter.guard_context.type_of(one) not in PLAIN_TENSOR_CLASSES or one.is_inference():
            return "of a subclass, or of a tensor that inference mode made"
    if interpreter.transforms or tracer.recorder.fence:
        return "in a transform"
    if (tensor.dtype, tensor.device) != (value.dtype, value.device):
        return "of another dtype or device"
    if tensor.place.given_at < 0 and (reason := _held(interpreter, tensor)):
        return reason
    real = tracer.owner_of(value)
    if real is not None and real.requires_grad:
        ask_view(value)
        if real._is_view():
            return "from a view that needs gradients"
    if id(tensor) in guard_context.switched:
        return "behind requires_grad_()"
    return ""


def _held(interpreter: Interpreter, tensor: Any) -> str:
    """Why the memory that the tensor has cannot be left; empty if it can."""
    tracer, place = interpreter.tracer, tensor.place
    real = tracer.real_of(tensor)
    if real is None:
        return "of a tensor made in the frame"
    ask_view(tensor)
    if real._is_view():
        return "of a view"
    if place.base is not None or place.version or VERSION(tensor):
        return "of what was written to before"
    if any(fake.requires_grad for fake, _ in tracer.inputs) or tracer.leaf_reads:
        # Of what autograd saves it keeps the object, which has other contents at the backward.
        calls = [c for c in tracer.recorder.calls if c[5] and c[0] is not _DETACH]
        if place.value in used_values(calls):
            return "of what autograd may have saved"
    return ""


def _leave_memory(tracer: Tracer, tensor: Any) -> None:
    """The graph's input is the memory that the tensor had."""
    for index, (fake, real) in enumerate(tracer.inputs):
        if fake is tensor:
            tracer.inputs[index] = (traced(new_fake, (tensor.place,), {}), real)
