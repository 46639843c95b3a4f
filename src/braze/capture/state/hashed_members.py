"""Dicts and sets from outside whose keys hash, or compare, by code of the program.

    table = {Key(1, "a"): 2.0, Key(2, "b"): 3.0}        # Key: a frozen dataclass
    table[Key(1, "a")]     # each key's `__hash__` is interpreted, and the attributes that it reads
                           # are guarded; `has_members` asks for these very keys in this order

A container keeps the hash that a key had when it was put there. A copy that asks the keys again is
the same container only if they still have these, which is asked at capture and at each call.
Refused are keys that share a hash (telling them apart runs `__eq__`), whose end is noticed (entries
keep them), and whose `__hash__` changes something.
"""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable
from typing import Any, final

import torch

from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.state.guard_context import GuardContext
from braze.capture.state.hidden_members import is_key
from braze.capture.state.opaque_objects import keeps_state_in_c
from braze.capture.state.special_methods import has_callbacks
from braze.frozen import frozen
from braze.ir.captured.guard import ABSENT, GuardKind
from braze.ir.captured.source import DictEntrySource, DictKeySource, Source

# Puts a key into a dict, with a value, or into a set; what of the program that runs is interpreted.
Put = Callable[[Any, Any, Any], None]

_ORDERED_OR_MADE = (collections.OrderedDict, collections.defaultdict, collections.Counter)


def refuse_put(container: object, key: object, value: object) -> None:
    """What is done while no interpreter has the side effects."""
    raise BreakRequested("unsupported-container", "a container of objects")


def is_plain_key(guard_context: GuardContext, key: object) -> bool:
    """Whether a container finds an object without code of the program."""
    if issubclass(type(key), torch.Tensor) or is_key(key):
        return True
    lookup, cls = guard_context.lookup, type(key)
    own = lookup(cls, "__hash__") is object.__hash__ and lookup(cls, "__eq__") is object.__eq__
    return own and id(cls) not in guard_context.made_classes


def copy_of_objects(
    guard_context: GuardContext, container: Any, source: Source, put: Put
) -> object:
    """A dict of a container's entries, or a set of its members, which are guarded."""
    is_dict = issubclass(type(container), dict)
    if issubclass(type(container), _ORDERED_OR_MADE):
        raise BreakRequested("unsupported-container", f"a {type(container).__name__} of objects")
    order = _order(container)
    for key in order:
        if not _is_followed(guard_context, key):
            detail = "a dict keyed by objects" if is_dict else "a set of objects"
            raise BreakRequested("unsupported-container", detail)
    guard_context.guard(source, GuardKind.LENGTH, len(order))
    values = [*dict.values(container)] if is_dict else []
    copy: Any = {} if is_dict else set()
    for index, key in enumerate(order):
        guard_context.wrap_value(key, DictKeySource(source, index))
        guard_context.guard_contents(key)
        value = None
        if is_dict:
            value = guard_context.wrap_value(values[index], DictEntrySource(source, index))
        try:
            put(copy, key, value)
        except ProgramRaised:
            raise BreakRequested("unsupported-container", "a key whose hash raises") from None
    # None of the hashes changes anything: each was interpreted. Where all differ, sets of the
    # members are made without `__eq__`.
    if len({*map(hash, copy)}) < len(order):
        raise BreakRequested("unsupported-container", "keys whose hashes changed, or are shared")
    members = Members(order, _hashed(container))
    if not has_members(copy, members):
        raise BreakRequested("unsupported-container", "keys whose hashes changed, or are shared")
    guard_context.guard(source, GuardKind.ANSWER, (has_members, (members,), True))
    return frozenset(copy) if issubclass(type(container), frozenset) else copy


@final
@frozen(eq=False)
class Members:
    """What a container held: its members in order, and a set that has the hashes that it kept."""

    order: list[Any]
    hashed: set[Any]

    def __repr__(self) -> str:
        return f"{len(self.order)} members"


def has_members(container: object, members: Members) -> bool:
    """Whether a dict or set holds these very objects, in this order, under these hashes: sets and
    dicts are copied with the hashes that they keep, and compared by them."""
    now = _order(container)
    if len(now) != len(members.order) or not all(map(operator.is_, now, members.order)):
        return False
    return _hashed(container) == members.hashed


def _order(container: Any) -> list[object]:
    for base in (dict, set, frozenset):
        if issubclass(type(container), base):
            return [*base.__iter__(container)]
    return []


def _hashed(container: Any) -> set[object]:
    """The members, with the hashes that the container has of them."""
    if issubclass(type(container), dict):
        container = dict.copy(container)
    return set(container)


def _is_followed(guard_context: GuardContext, key: Any) -> bool:
    """Whether it is known what a member hashes and compares by: a tuple does by its items."""
    if is_plain_key(guard_context, key) or _hashes_in_python(guard_context, key):
        return True
    return _is_by_items(guard_context, key) and all(
        _is_followed(guard_context, item) for item in tuple.__iter__(key)
    )


def _is_by_items(guard_context: GuardContext, key: object) -> bool:
    lookup, cls = guard_context.lookup, type(key)
    if not issubclass(cls, tuple) or lookup(cls, "__del__") is not ABSENT:
        return False
    return lookup(cls, "__hash__") is tuple.__hash__ and lookup(cls, "__eq__") is tuple.__eq__


def _hashes_in_python(guard_context: GuardContext, key: object) -> bool:
    """Whether a key's hash is what a method of its class in Python says, and nobody notices that an
    entry keeps the key."""
    cls = type(key)
    if keeps_state_in_c(cls) or guard_context.lookup(cls, "__del__") is not ABSENT:
        return False
    if has_callbacks(key):
        return False
    return type(guard_context.lookup(cls, "__hash__")) is types.FunctionType
