"""Numbers that objects have by being where they are: `id(x)`, and `hash(x)` of what has no other.

One that only leaves the frame is asked for again, of the object that another call has in its place.
One that the program computes with, or looks up, holds for this very object, which is guarded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from braze.capture.frames.control_signals import BreakRequested
from braze.ir.captured.guard import GuardKind
from braze.ir.captured.source import ObjectSource

if TYPE_CHECKING:
    from braze.capture.state.guard_context import GuardContext


def settle_numbers(guard_context: GuardContext, values: Iterable[object]) -> None:
    """The program computes with values: guard the objects whose numbers are among them."""
    for value in values:
        if type(value) is int and value in guard_context.numbers_of_objects:
            _settle(guard_context, value)


def _settle(guard_context: GuardContext, number: int) -> None:
    _, owner = guard_context.numbers_of_objects[number]
    source = guard_context.source_of(owner)
    if source is None:  # it was made here, and has another number at each call
        return
    del guard_context.numbers_of_objects[number]
    if type(source) is not ObjectSource:
        real = (
            guard_context.tracer.real_of(owner) if id(owner) in guard_context.classes_of else owner
        )
        guard_context.guard(source, GuardKind.ID_MATCH, real)


def refuse_number(guard_context: GuardContext, key: object) -> None:
    """Break before an object from outside is told the number of one that was made here."""
    if type(key) is int and key in guard_context.numbers_of_objects:
        raise BreakRequested("unsupported-container", "a key that is the id of a new object")
