"""Inputs that have elements in common, one of which is written to: the graph has their memory.

    f(z, z[0])              %0 is the memory of z, of one dimension
        a.mul_(2)    ->     %1 = view(%0, (3, 4))           # a
        b + 1               %2 = slice(%0, 0, 0, 4)         # b

The write shows it in the middle of a capture that took them for separate memory: the frame is
captured again. Guarded are their sizes and strides, none of which is a symbol, and how they lie in
the memory. The write breaks the graph, as it did, where gradients are recorded for one of them, the
graph is asked for itself, their dtypes differ, or they are no views of one tensor (`x.detach()`,
`x.data`), so that a write to one of them is not counted for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.calls.torch_calls import leaf_call
from braze.capture.frames.control_signals import SharedWrite
from braze.compat.torch.ambient_state import call_untraced
from braze.compat.torch.tensor_abi import shared_memory
from braze.frozen import frozen
from braze.ir.captured.source import SharedMemorySource, Source
from braze.shapes.memory_overlap import extent_of
from braze.tracing.fake_tensor import Place

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@final
@frozen(eq=False)
class SharedMemory:
    """Tensors that have elements in common. source: of their memory."""

    tensors: tuple[torch.Tensor, ...]
    source: SharedMemorySource


@final
class SharedInputs:
    """The inputs of one capture that are views of an input which is their memory."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._groups = {id(t): group for group in interpreter.request.shared for t in group.tensors}
        self._memories: dict[int, tuple[SharedMemory, torch.Tensor, torch.Tensor]] = {}
        interpreter.tracer.recorder.refuse_shared_write = self._capture_again
        interpreter.guard_context.is_shared = lambda real: id(real) in self._groups
        interpreter.guard_context.wrap_shared = self._wrap

    def release(self) -> None:
        """Let go of the tensors, and of what holds this."""
        self._groups.clear()
        self._memories.clear()
        context = self._interpreter.guard_context
        context.is_shared, context.wrap_shared = (lambda real: False), (lambda real: None)
        self._interpreter.tracer.recorder.refuse_shared_write = lambda base: None
        del self._interpreter

    def check_histories(self) -> None:
        """SharedWrite where a write gave the memory a history, which eager gives to the tensor of
        which the inputs are views. Such a write breaks the graph."""
        request = self._interpreter.request
        for group, _, made in self._memories.values():
            if made.requires_grad:
                request.shared.remove(group)
                request.unshared.append(group)
                raise SharedWrite

    def _wrap(self, real: torch.Tensor) -> Any:
        """The fake tensor of one of them, a view of the fake tensor of the memory."""
        interpreter, group = self._interpreter, self._groups[id(real)]
        memory = self._memory_of(group)
        known = interpreter.guard_context.fakes.get(id(real))
        if known is not None:
            return known
        start = group.source.starts[[t is real for t in group.tensors].index(True)]
        shape, stride = tuple(real.shape), real.stride()
        is_dense = stride == torch.empty(shape, device="meta").stride()
        count = real.numel() if is_dense else group.source.length - start
        with torch.enable_grad():
            part = memory
            if count < group.source.length:
                part = leaf_call(interpreter, torch.narrow, (memory, 0, start, count), {})
            if is_dense:
                fake = leaf_call(interpreter, torch.Tensor.view, (part, shape), {})
            else:
                fake = leaf_call(interpreter, torch.as_strided, (part, shape, stride), {})
        interpreter.tracer.add_shared_input(fake, real)
        return fake

    def _memory_of(self, group: SharedMemory) -> torch.Tensor:
        """The fake tensor of the memory. All of the tensors are guarded."""
        known = self._memories.get(id(group))
        if known is not None:
            return known[2]
        context, source = self._interpreter.guard_context, group.source
        plain = call_untraced(shared_memory, (group.tensors, source.starts, source.length), {})
        made = self._interpreter.tracer.add_input(plain)
        context.input_sources.append(source)
        context.fakes[id(plain)] = made
        context.known[id(plain)] = (plain, source)
        context.known[id(made)] = (made, source)
        context.give_class(made, torch.Tensor)
        self._memories[id(group)] = group, plain, made
        for tensor, each in zip(group.tensors, (source.base, *source.others)):
            context.wrap_value(tensor, each)
        return made

    def _capture_again(self, place: Place) -> None:
        """SharedWrite where the inputs that meet this one may be views of an input."""
        interpreter = self._interpreter
        held = {id(plain): group.tensors for group, plain, _ in self._memories.values()}
        met = interpreter.tracer.inputs_that_meet(place)
        tensors = {id(t): t for real in met for t in held.get(id(real), (real,))}
        request = interpreter.request
        if interpreter.transforms or request.is_transformed or request.is_exporting:
            return
        if len(tensors) < 2 or not may_be_views(tuple(tensors.values())):
            return
        unshared = {id(t) for group in request.unshared for t in group.tensors}
        if not unshared.isdisjoint(tensors):
            return
        known = interpreter.guard_context.known
        group = _lay_out(tuple(tensors.values()), [known[number][1] for number in tensors])
        shared = request.shared
        if any(tensors.keys() <= {id(t) for t in other.tensors} for other in shared):
            return
        shared[:] = [s for s in shared if tensors.keys().isdisjoint(map(id, s.tensors))]
        shared.append(group)
        raise SharedWrite


def may_be_views(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors that share memory can be views of it in a graph."""
    first = tensors[0]
    roots = {id(t if t._base is None else t._base): t for t in tensors}
    return len(roots) == 1 and all(
        type(t) is torch.Tensor
        and (t.dtype, t.device) == (first.dtype, first.device)
        and not (t.requires_grad or t.is_inference() or t.is_conj() or t.is_neg())
        and (t._base is None or not t._base.requires_grad)
        for t in tensors
    )


# --- private ---------------------------------------------------------------------------------


def _lay_out(tensors: tuple[torch.Tensor, ...], sources: Sequence[Source]) -> SharedMemory:
    extents = [extent_of(tensor) for tensor in tensors]
    width, begin = extents[0].width, min(extent.start for extent in extents)
    starts = tuple([(extent.start - begin) // width for extent in extents])
    length = (max(extent.end for extent in extents) - begin) // width
    first, *others = sources
    return SharedMemory(tensors, SharedMemorySource(first, tuple(others), starts, length))
