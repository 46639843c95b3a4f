"""Calls of weak references: what they refer to is guarded, or has ended."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.finalizers import has_lost_a_place, is_dropped, may_have_ended
from braze.ir.captured.source import ReferentSource

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def open_reference(
    interpreter: Interpreter, reference: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """What a weak reference refers to, or None. It is guarded where it is found: an entry does not
    keep it alive."""
    guard_context = interpreter.guard_context
    target = reference()
    source = guard_context.source_of(reference)
    if target is not None and (
        may_have_ended(interpreter, target)
        or has_lost_a_place(interpreter, target)
        or (source is None and is_dropped(interpreter, target))
    ):
        raise BreakRequested("finalizer", f"a {guard_context.type_of(target).__qualname__}")
    if source is None:
        return target
    key = (id(reference), "()")
    if key not in guard_context.reads:
        guard_context.reads[key] = guard_context.wrap_value(target, ReferentSource(source))
    return guard_context.reads[key]


@answers(weakref.ReferenceType.__call__)
def open_subclass(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`reference()` of a subclass, such as those of `weakref.WeakValueDictionary`."""
    return open_reference(interpreter, args[0], args[1:], kwargs)
