"""Calls of `operator.itemgetter`, `attrgetter`, `methodcaller`: what they read is interpreted."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

from braze.capture.objects.attribute_load import load_attribute
from braze.capture.objects.items import get_item
from braze.ir.captured.guard import GuardKind

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


def call_getter(
    interpreter: Interpreter, getter: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """operator.itemgetter, attrgetter, methodcaller."""
    source = interpreter.guard_context.source_of(getter)
    if source is not None:  # what it gets can be seen in its pickle only
        interpreter.guard_context.guard(source, GuardKind.ID_MATCH, getter)
    kind, names = getter.__reduce__()[:2]
    if kind is operator.itemgetter:
        found = [get_item(interpreter, args[0], name) for name in names]
    elif kind is operator.attrgetter:
        found = [_dotted(interpreter, args[0], name) for name in names]
    else:
        return _call_named_method(interpreter, args[0], kind, names)
    return found[0] if len(found) == 1 else tuple(found)


def _call_named_method(
    interpreter: Interpreter, owner: object, kind: object, given: tuple[object, ...]
) -> object:
    """operator.methodcaller: with keywords, what it is made by is a partial that holds them."""
    if isinstance(kind, functools.partial):
        name, args, kwargs = kind.args[0], (*kind.args[1:], *given), kind.keywords
    else:
        name, args, kwargs = given[0], given[1:], {}
    return interpreter.call(load_attribute(interpreter, owner, name), *args, **kwargs)


def _dotted(interpreter: Interpreter, value: object, names: str) -> object:
    for name in names.split("."):
        value = load_attribute(interpreter, value, name)
    return value
