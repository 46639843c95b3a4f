"""Calls of weak references: what they refer to is guarded, or has ended."""

from __future__ import annotations

import weakref
from typing import Any

from braze.capture.finalizers import is_dropped, may_have_ended
from braze.capture.handler_table import answers
from braze.capture.signals import BreakRequested
from braze.ir.source import ReferentSource


def open_reference(
    interpreter: Any, reference: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What a weak reference refers to, or None. It is guarded where it is found: an entry does not
    keep it alive."""
    world = interpreter.world
    target = reference()
    source = world.source_of(reference)
    if target is not None and (
        may_have_ended(interpreter, target) or (source is None and is_dropped(interpreter, target))
    ):
        raise BreakRequested("finalizer", f"a {world.type_of(target).__qualname__}")
    if source is None:
        return target
    key = (id(reference), "()")
    if key not in world.reads:
        world.reads[key] = world.adopt(target, ReferentSource(source))
    return world.reads[key]


@answers(weakref.ReferenceType.__call__)
def open_subclass(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`reference()` of a subclass, such as those of `weakref.WeakValueDictionary`."""
    return open_reference(interpreter, args[0], args[1:], kwargs)
