"""Tensors and objects from outside that are written to: none may be reached as another, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.capture.overlay import Overlay
from braze.capture.world import World
from braze.ir.graph import Graph
from braze.ir.guard import GuardKind
from braze.ir.source import ObjectSource, Source


def guard_written_inputs(world: World, graph: Graph, reals: Sequence[Any]) -> str | None:
    """Guard that the inputs of a graph with write-backs are distinct and do not overlap.

    `reals` are the real tensors of `graph.inputs`. Gives what is wrong if they do overlap now: the
    trace took them for separate memory. Parameters are checked now but not guarded: a parameter
    that comes to share the memory of a written input would be a new tensor object.
    """
    written = {mutation.input for mutation in graph.mutations}
    if not written:
        return None
    inputs = [(real, value) for real, value in zip(reals, graph.inputs) if real is not None]
    reals = [real for real, _ in inputs]
    sources = [world.known[id(real)][1] for real in reals]
    owners: dict[int, Source] = {}
    groups: dict[int, tuple[Source, ...]] = {}
    shared: list[str] = []
    written_storages = {storage_of(real) for real, value in inputs if value in written}
    for (real, value), source in zip(inputs, sources):
        storage = storage_of(real)
        if storage in owners and storage in written_storages:
            shared.append(f"{source} and {owners[storage]}")
        owners.setdefault(storage, source)
        if value in written or type(real) is not torch.nn.Parameter:
            groups[storage] = (*groups.get(storage, ()), source)
    if shared:
        return f"{shared[0]} share memory, and one of them is written to"
    if len(reals) > 1:
        world.guard(None, GuardKind.TENSORS_DISTINCT, tuple(sources))
        if len(groups) > 1:
            world.guard(None, GuardKind.STORAGE_OVERLAP, tuple(groups.values()))
    return None


def guard_written_objects(world: World, overlay: Overlay) -> None:
    """Guard that objects from outside that are written to are not also reached elsewhere: all
    objects of a written object's class are distinct, as they were when they were read."""
    written: list[Any] = [
        space if owner is None else owner for space, owner in overlay.written_objects()
    ]
    written += [owner for owner, _ in overlay.slots.values()]
    written += [cell for cell, _ in overlay.cells.values()]
    for cls in {type(value) for value in written}:
        sources = [
            source
            for value, source in world.known.values()
            if type(value) is cls and type(source) is not ObjectSource
        ]
        if len(sources) > 1:
            world.guard(None, GuardKind.TENSORS_DISTINCT, tuple(sources))


def guard_used_offsets(world: World, tracer: Any) -> None:
    """Guard where inputs begin in their storages, of those on whose offset the trace depends."""
    for index, origin in tracer.used_offsets.items():
        real = tracer.inputs[index][1]
        offset = real.storage_offset()
        world.guard(world.input_sources[index], GuardKind.STORAGE_OFFSET, offset, origin)


def storage_of(real: torch.Tensor) -> int:
    """What two tensors have in common if they share memory; unique for an empty one."""
    address = real.untyped_storage().data_ptr()
    return address or -id(real)
