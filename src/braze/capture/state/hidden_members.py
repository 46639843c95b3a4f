"""Dicts with members whose `__eq__` is the program's own.

Looking such a dict up runs the program's code, whatever the key is: a text with the hash of a
member is compared with it. So its entries are not read one at a time, and guards look none up.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from braze.capture.state.guard_context import raw_lookup
from braze.capture.state.side_effects import is_key

# The commonest kinds of keys, which C code compares.
_PLAIN = frozenset({str, int, float, bool, bytes, complex, types.NoneType})


def asks_members(space: dict[Any, Any]) -> bool:
    """Whether a lookup in a dict may ask a member for its `__eq__`."""
    kinds = {*map(type, dict.__iter__(space))} - _PLAIN
    return bool(kinds) and any(_asks(kind, space) for kind in kinds)


def finds_in_c(space: dict[Any, Any], key: Any) -> bool:
    """Whether an entry of a dict is found by this key without Python code: neither the key nor a
    member has an `__eq__` of the program's own."""
    return is_key(key) and not asks_members(space)


def _asks(kind: type, space: dict[Any, Any]) -> bool:
    """Whether members of a class are compared by the program's code."""
    if issubclass(kind, torch.Tensor):
        return False
    if kind in (tuple, frozenset):
        members = [member for member in dict.__iter__(space) if type(member) is kind]
        return not all(is_key(part) for member in members for part in member)
    return type(raw_lookup(kind, "__eq__")) is not types.WrapperDescriptorType
