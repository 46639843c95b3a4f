"""Tensors and objects from outside: which of them are one, and which share memory."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.state.guard_context import GuardContext
from braze.compat.numpy.interface import lie_apart
from braze.compat.torch.autograd_engine import view_kind
from braze.ir.captured.guard import GuardKind
from braze.ir.captured.source import (
    ArrayMemorySource,
    AttributeSource,
    ObjectSource,
    PlainMemorySource,
    SharedMemorySource,
    Source,
)
from braze.ir.graphs.graph import Graph
from braze.shapes.memory_overlap import Access, first_meeting
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.symbolic.symbolic_float import SymbolicFloat

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer


def guard_written_inputs(
    guard_context: GuardContext, graph: Graph, given: Sequence[tuple[TracedTensor, object]]
) -> str | None:
    """Guard that the inputs of a graph with write-backs have no elements in common with those that
    it writes to.

    `given` are the fake and real tensors of `graph.inputs`. Gives what is wrong if some have now:
    the trace took them for separate memory. Parameters of modules, of which there are hundreds, are
    checked now, and guarded where something is written to that is no module's: a parameter may come
    to lie in an argument (`weight.data = x[:3]`), but hardly in a running mean.
    """
    written = {mutation.input for mutation in graph.mutations}
    if not written:
        return None
    inputs = [
        (fake, real, value) for (fake, real), value in zip(given, graph.inputs) if real is not None
    ]
    sources = [guard_context.known[id(real)][1] for _, real, _ in inputs]
    if any(type(source) is ArrayMemorySource for source in sources):
        return _guard_apart(guard_context, [real for _, real, _ in inputs], sources)
    modules = {
        s for value, s in guard_context.known.values() if issubclass(type(value), torch.nn.Module)
    }
    of_module = [_is_of_module(source, modules) for source in sources]
    writes_outside = any(
        value in written and not inside for (*_, value), inside in zip(inputs, of_module)
    )
    found: dict[Access, list[tuple[Any, Source]]] = {role: [] for role in Access}
    guarded: dict[Access, list[Source]] = {role: [] for role in Access}
    for (fake, real, value), source, inside in zip(inputs, sources, of_module):
        role = _role_of(fake) if value in written else Access.READ
        found[role].append((real, source))
        is_parameter = inside and type(real) is torch.nn.Parameter
        if role is not Access.READ or writes_outside or not is_parameter:
            guarded[role].append(source)
    if (
        met := first_meeting([[real for real, _ in group] for group in found.values()])
    ) is not None:
        places = [source for group in found.values() for _, source in group]
        one, other = (places[number] for number in met)
        return f"{one} and {other} share memory, and one of them is written to"
    if sum(map(len, guarded.values())) > 1:
        groups = tuple(map(tuple, guarded.values()))
        guard_context.guard(None, GuardKind.STORAGE_OVERLAP, groups)
    return None


def _role_of(written: TracedTensor) -> Access:
    """Of an input that has a history after it was written to, autograd may have given that history
    to other views of its base."""
    has_history = written.requires_grad and not written.is_leaf
    return Access.REBASED if has_history else Access.WRITTEN


def _guard_apart(guard_context: GuardContext, reals: list[Any], places: list[Source]) -> str | None:
    """The same where arrays are among the inputs, whose tensors have storages of their own."""
    on_host = [(r, p) for r, p in zip(reals, places) if r.device.type == "cpu"]
    if not lie_apart(tuple([real for real, _ in on_host])):
        return "arrays or tensors share memory, and one of them is written to"
    if len(on_host) > 1:
        guard_context.guard(None, GuardKind.APART, tuple([place for _, place in on_host]))
    return None


def _is_of_module(source: Source, modules: set[Source]) -> bool:
    """Whether a module has the tensor, or it is the gradient of one that a module has."""
    if type(source) is AttributeSource and source.name == "grad":
        source = source.base
    return type(source) is AttributeSource and source.base in modules


def guard_distinct(guard_context: GuardContext) -> None:
    """Guard that objects of one class that were found at several sources are several.

    Whether two are one is asked in many ways (`is`, `id`, a key of a dict, a member of a set or
    list, an `==` of object's own), and answered by the objects themselves. What is guarded by
    identity (`ObjectSource`) counts where another source may lead to it.
    """
    apart: dict[type, dict[Source, None]] = {}
    fixed: dict[type, dict[Source, None]] = {}
    for value, source in guard_context.known.values():
        cls = type(value)
        if cls in _NOT_ASKED or guard_context.tracer.is_fake(value):
            continue
        by_identity = type(source) is ObjectSource
        if type(source) in _MADE_AT_EACH_READ:
            continue
        (fixed if by_identity else apart).setdefault(cls, {})[source] = None
    for cls, sources in apart.items():
        others = () if cls is types.FunctionType else fixed.get(cls, ())
        together = (*sources, *others)
        if len(together) > 1:
            guard_context.guard(None, GuardKind.DISTINCT, together)


_MADE_AT_EACH_READ = frozenset({ArrayMemorySource, PlainMemorySource, SharedMemorySource})
# Programs do not get at cells; methods are made when they are read; a number that may change is
# guarded by its class alone.
_NOT_ASKED = frozenset(
    {types.CellType, types.MethodType, types.BuiltinMethodType, types.MethodWrapperType}
    | {SymbolicFloat}
)


def guard_used_inputs(guard_context: GuardContext, tracer: Tracer) -> None:
    """Guard what the trace depends on of inputs, beside their metadata."""
    _guard_offsets(guard_context, tracer)
    _guard_views(guard_context, tracer)


def _guard_offsets(guard_context: GuardContext, tracer: Tracer) -> None:
    """Guard where inputs begin in their storages, of those on whose offset the trace depends."""
    for index, origin in tracer.used_offsets.items():
        real = tracer.inputs[index][1]
        offset = real.storage_offset()
        guard_context.guard(
            guard_context.input_sources[index], GuardKind.STORAGE_OFFSET, offset, origin
        )


def _guard_views(guard_context: GuardContext, tracer: Tracer) -> None:
    """Guard what kind of view inputs are, of those whose kind the trace depends on: autograd
    refuses to write to some, and forgets the history of others. A parameter is never a view."""
    for (fake, real), source in zip(tracer.inputs, guard_context.input_sources, strict=True):
        place = fake.place.base or fake.place
        if place.asks_view and real is not None and type(real) is not torch.nn.Parameter:
            guard_context.guard(source, GuardKind.VIEW, view_kind(real))
