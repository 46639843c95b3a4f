"""Dicts with members whose `__eq__` is the program's own.

Looking such a dict up runs the program's code, whatever the key is: a text with the hash of a
member is compared with it. So its entries are not read one at a time, and guards look none up.
"""

from __future__ import annotations

import itertools
import types
from typing import Any

import torch

from braze.capture.state.guard_context import is_constant, is_identity, raw_lookup
from braze.capture.state.special_methods import is_hashed_in_python

# The commonest kinds of keys, which C code compares.
_PLAIN = frozenset({str, int, float, bool, bytes, complex, types.NoneType})


def is_key(value: object) -> bool:
    """Whether an entry of a dict is found again by this key, without Python code: a constant, a
    function, a class, or a tuple of such."""
    if type(value) in ALIASES:
        return all(map(is_key, alias_parts(value)))
    if is_constant(value) or (is_identity(value) and not is_hashed_in_python(type(value))):
        return True
    return type(value) is tuple and all(map(is_key, value))


def is_single_key(value: object) -> bool:
    """The same of what is a constant, or guarded by what it is."""
    return is_key(value) and (type(value) is not tuple or is_constant(value))


# `list[a]` and `a | b` hash, and compare, by the objects that they are made of.
ALIASES = frozenset({types.GenericAlias, types.UnionType})


def alias_parts(value: Any) -> tuple[object, ...]:
    """The objects that a generic alias or a union of classes is made of."""
    if type(value) is types.UnionType:
        return tuple(value.__args__)
    return (value.__origin__, *value.__args__)


def asks_members(space: dict[object, object]) -> bool:
    """Whether a lookup in a dict may ask a member for its `__eq__`."""
    kinds = {*map(type, dict.__iter__(space))} - _PLAIN
    return bool(kinds) and any(_asks(kind, space) for kind in kinds)


def finds_in_c(space: dict[object, object], key: object) -> bool:
    """Whether an entry of a dict is found by this key without Python code: neither the key nor a
    member has an `__eq__` of the program's own."""
    return is_key(key) and not asks_members(space)


def _asks(kind: type, space: dict[object, object]) -> bool:
    """Whether members of a class are compared by the program's code."""
    if issubclass(kind, torch.Tensor):
        return False
    if kind in (tuple, frozenset):
        members: Any = [member for member in dict.__iter__(space) if type(member) is kind]
        return _parts_ask(members)
    if kind in ALIASES:
        return not all(is_key(member) for member in dict.__iter__(space) if type(member) is kind)
    return type(raw_lookup(kind, "__eq__")) is not types.WrapperDescriptorType


def _parts_ask(members: Any) -> bool:
    """The same of what tuples and frozen sets hold, level by level: by their classes, since a loop
    that fills a dict asks at each turn."""
    while members:
        parts = list(itertools.chain.from_iterable(members))
        kinds = {*map(type, parts)} - _PLAIN
        nested = kinds & {tuple, frozenset}
        if kinds - nested and not all(is_key(p) for p in parts if type(p) in kinds - nested):
            return True
        members = [part for part in parts if type(part) in nested] if nested else ()
    return False
