"""`Class.__dict__` of a class from outside: real code reads it, and what it reads is guarded."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

from braze.ir.captured.guard import ABSENT, GuardKind
from braze.ir.captured.source import AttributeSource, ItemSource, ObjectSource

if TYPE_CHECKING:
    from braze.capture.state.guard_context import GuardContext

# What reads one entry of the first argument: that of the second one.
_OF_ONE_ENTRY = (
    operator.getitem,
    operator.contains,
    types.MappingProxyType.get,
    types.MappingProxyType.__getitem__,
    types.MappingProxyType.__contains__,
)


def guard_class_dicts(guard_context: GuardContext, function: object, args: tuple[Any, ...]) -> None:
    """Guard what a call of real code reads of such dicts among its arguments."""
    for index, value in enumerate(args):
        cls = guard_context.class_dicts.get(id(value))
        if cls is None:
            continue
        single = index == 0 and len(args) > 1 and type(args[1]) is str
        if single and any(function is known for known in _OF_ONE_ENTRY):
            _guard_entry(guard_context, cls, value, args[1])
            continue
        source = AttributeSource(ObjectSource(cls.__qualname__, cls), "__dict__")
        guard_context.guard(source, GuardKind.DICT_KEYS, tuple(value))
        for name in value:
            _guard_entry(guard_context, cls, value, name)


def _guard_entry(guard_context: GuardContext, cls: type, space: Any, name: str) -> None:
    """The entry is this very object, or is not there."""
    value = space.get(name, ABSENT)
    guard_context.guard_namespace(cls, name, value, f"{cls.__qualname__}.__dict__")
    if value is not ABSENT:
        source = AttributeSource(ObjectSource(cls.__qualname__, cls), "__dict__")
        guard_context.track(value, ItemSource(source, name))
