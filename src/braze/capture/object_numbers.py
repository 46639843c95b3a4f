"""Numbers that objects have by being where they are: `id(x)`, and `hash(x)` of what has no other.

One that only leaves the frame is asked for again, of the object that another call has in its place.
One that the program computes with, or looks up, holds for this very object, which is guarded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from braze.capture.signals import BreakRequested
from braze.ir.guard import GuardKind
from braze.ir.source import ObjectSource


def settle_numbers(world: Any, values: Iterable[Any]) -> None:
    """The program computes with values: guard the objects whose numbers are among them."""
    for value in values:
        if type(value) is int and value in world.numbers_of_objects:
            _settle(world, value)


def _settle(world: Any, number: int) -> None:
    _, owner = world.numbers_of_objects[number]
    source = world.source_of(owner)
    if source is None:  # it was made here, and has another number at each call
        return
    del world.numbers_of_objects[number]
    if type(source) is not ObjectSource:
        real = world.tracer.real_of(owner) if id(owner) in world.classes_of else owner
        world.guard(source, GuardKind.ID_MATCH, real)


def refuse_number(world: Any, key: Any) -> None:
    """Break before an object from outside is told the number of one that was made here."""
    if type(key) is int and key in world.numbers_of_objects:
        raise BreakRequested("unsupported-container", "a key that is the id of a new object")
