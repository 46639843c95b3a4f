"""What C code may run, or read, of an object that it is given: the special methods of its class."""

from __future__ import annotations

import collections
import decimal
import enum
import functools
import operator
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.guard_context import (
    CONSTANTS,
    IDENTITIES,
    TENSORS,
    is_identity_class,
    raw_lookup,
)
from braze.capture.state.provenance import module_of_class
from braze.class_facts import fact_of_class
from braze.compat.python.stdlib import SPECIAL_METHODS
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.state.guard_context import GuardContext

_FIXED = (type, enum.Enum, types.ModuleType)


@fact_of_class
def runs_python(cls: Any) -> bool:
    """Whether C code may run Python code of instances, which are no containers."""
    if cls in CONSTANTS or cls in TENSORS:
        return False
    if is_identity_class(cls) and (cls in IDENTITIES or issubclass(cls, _FIXED)):
        return False
    return module_of_class(cls) != "builtins"


def guard_special_methods(guard_context: GuardContext, cls: type) -> None:
    """A class keeps the methods that C code looks for in an instance, and gets no others."""
    if cls in guard_context.with_methods or not cls.__flags__ & _HEAP_TYPE:
        return
    guard_context.with_methods.add(cls)
    if id(cls) in guard_context.made_classes:
        for base in type.__dict__["__bases__"].__get__(cls):
            guard_special_methods(guard_context, base)
        return
    found = dict.fromkeys(SPECIAL_METHODS, ABSENT)
    for base in reversed(type.__dict__["__mro__"].__get__(cls)):
        space = type.__dict__["__dict__"].__get__(base)
        found.update({name: space[name] for name in SPECIAL_METHODS & space.keys()})
    if guard_context.by_code:
        guard_context.guard_identities(found.values())
    guard_context.lookups.setdefault(cls, {}).update(found)


_HEAP_TYPE = 1 << 9


def has_contents(cls: type) -> bool:
    """Whether a value has contents that C code reads or changes."""
    return issubclass(cls, _HOLDING)


_HOLDING = (
    *(list, dict, set, frozenset, collections.deque, bytearray),
    *(types.SimpleNamespace, types.MappingProxyType, functools.partial),
)


def check_context(classes: set[type]) -> None:
    """Break where C code computes by the thread's decimal context."""
    for cls in classes:
        if issubclass(cls, decimal.Decimal):
            raise BreakRequested("unseen-callable", "decimals, which the context rounds")


def check_given_up(values: Iterable[Any]) -> None:
    """Break before values lose a place outside of the frame where one has a `__del__`, which eager
    may run there: nothing is written while a frame is captured."""
    for value in values:
        cls: Any = type(value)
        if cls.__flags__ & _HEAP_TYPE and raw_lookup(cls, "__del__") is not ABSENT:
            raise BreakRequested("finalizer", f"a {cls.__qualname__}")


# C code that makes a text of what it is given.
MAKES_TEXT = frozenset(
    {repr, str, ascii, format, str.format, str.format_map, str.__mod__, operator.mod}
)


def check_text(guard_context: GuardContext, objects: list[Any]) -> None:
    """Break where C code would show where an object lies, or what a builtin one holds."""
    for value in objects:
        shows = guard_context.lookup(type(value), "__repr__")
        if type(shows) is not types.FunctionType and not is_identity_class(type(value)):
            raise BreakRequested("unseen-python", f"the text of a {type(value).__qualname__}")
