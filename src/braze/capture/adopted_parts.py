"""Values from outside that are taken in part by part: slices, and tuples of numbers that change."""

from __future__ import annotations

from typing import Any

from braze.ir.guard import GuardKind
from braze.ir.source import AttributeSource, ItemSource, Source


def adopt_slice(world: Any, value: slice, source: Source) -> slice:
    """A slice of what its parts are guarded to be."""
    world.guard(source, GuardKind.TYPE_MATCH, slice)
    parts = {name: getattr(value, name) for name in ("start", "stop", "step")}
    adopted = [world.adopt(p, AttributeSource(source, name)) for name, p in parts.items()]
    return slice(*adopted)


def adopt_changing(world: Any, value: tuple[Any, ...], source: Source) -> tuple[Any, ...] | None:
    """A tuple of floats of which some changed between compiles (an optimizer's `betas` under a
    schedule of momentum), item by item; None for another one, which is guarded by value."""
    if set(map(type, value)) != {float}:
        return None
    places = [ItemSource(source, index) for index in range(len(value))]
    changed = [world.sizes.is_lifted(p, item) for p, item in zip(places, value, strict=True)]
    if not any(changed):
        return None
    world.guard(source, GuardKind.TYPE_MATCH, tuple)
    world.guard(source, GuardKind.LENGTH, len(value))
    adopted = [world.adopt(item, place) for place, item in zip(places, value, strict=True)]
    made = tuple(adopted)
    world.constants[id(made)] = made, source
    return made
