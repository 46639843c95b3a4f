"""Guards on what values are and hold: equality, lengths, keys, attributes."""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from typing import Any

import torch

from braze.ir.captured.guard import SIZED, Guard, base_length
from braze.runtime.guards.codegen import SourceWriter, find_attribute, keys_in_order
from braze.runtime.guards.messages import Values, mismatch, short_text

_SHARED_BY_VALUE = (int, str, bytes)
_SHARED_BY_VALUE_SET = frozenset(_SHARED_BY_VALUE)
_ATOMS = (bool, type(None), type(Ellipsis), type(NotImplemented))
_PLAIN_DICTS = (dict, OrderedDict)


def same_constant(value: Any, expected: Any) -> bool:
    """Same exact type and equal; floats by their bits, containers element by element."""
    cls = type(expected)
    if type(value) is not cls:
        return False
    if value is expected:
        return True
    if issubclass(cls, torch.Tensor):
        return False  # another tensor: its numbers are no matter
    if issubclass(cls, float):
        return struct.pack("<d", value) == struct.pack("<d", expected)
    if cls is complex:
        return same_constant(value.real, expected.real) and same_constant(value.imag, expected.imag)
    if issubclass(cls, (tuple, list)):
        if _SHARED_BY_VALUE_SET.issuperset(map(type, expected)):  # many, compared by C code
            # Types first: a subclass's `__eq__` is the program's own.
            return [*map(type, value)] == [*map(type, expected)] and bool(value == expected)
        return len(value) == len(expected) and all(map(same_constant, value, expected))
    if cls is dict:
        return same_constant(tuple(value), tuple(expected)) and all(
            same_constant(value[key], expected[key]) for key in expected
        )
    if cls is slice:
        return same_constant(
            (value.start, value.stop, value.step), (expected.start, expected.stop, expected.step)
        )
    if issubclass(cls, (set, frozenset)):
        value, expected = set().union(value), set().union(expected)  # past a subclass's methods
        return value == expected and {(type(x), repr(x)) for x in value} == {
            (type(x), repr(x)) for x in expected
        }
    return bool(value == expected)


def keys_of(value: Any) -> tuple[object, ...]:
    """The keys of a dict, in order, by `dict` itself."""
    return keys_in_order(value) if issubclass(type(value), dict) else tuple(value)


def has_key(value: Any, key: Any) -> bool:
    """Whether a dict (a set, a class's dict) has the key, by the builtin itself."""
    return dict.__contains__(value, key) if issubclass(type(value), dict) else key in value


def has_attribute(value: object, name: str) -> bool:
    """hasattr() without the program's hooks, whose answers are its own."""
    try:
        find_attribute(value, name)
    except AttributeError:
        return False
    return True


def write_equals(writer: SourceWriter, guard: Guard) -> str:
    """The text of "has this type and value"."""
    value, expected = writer.read(guard.source), guard.expected
    cls = type(expected)
    if cls in _ATOMS:
        return f"{value} is {writer.constant(expected)}"
    same_type = f"type({value}) is {writer.constant(cls)}"
    if cls in _SHARED_BY_VALUE:
        return f"{same_type} and {value} == {writer.constant(expected)}"
    if cls is float and expected != 0 and math.isfinite(expected):
        return f"{same_type} and {value} == {writer.constant(expected)}"
    writer.namespace["same_constant"] = same_constant
    return f"same_constant({value}, {writer.constant(expected)})"


def explain_equals(guard: Guard, value: object, others: Values) -> str | None:
    """Which type or value it has now; None where it has the expected one."""
    if same_constant(value, guard.expected):
        return None
    if type(value) is not type(guard.expected):
        return mismatch(guard, "type", type(guard.expected), type(value))
    return mismatch(guard, "value", short_text(guard.expected), short_text(value))


def write_length(writer: SourceWriter, guard: Guard) -> str:
    """The text of "has so many items"."""
    value = writer.read(guard.source)
    known = writer.type_of(guard.source)
    if known is not None and _has_builtin_length(known):
        return f"len({value}) == {guard.expected}"
    writer.namespace["base_length"] = base_length
    return f"base_length({value}) == {guard.expected}"


def _has_builtin_length(cls: type) -> bool:
    return any(issubclass(cls, base) and cls.__len__ is base.__len__ for base in SIZED)


def explain_length(guard: Guard, value: object, others: Values) -> str | None:
    """How many items there are now."""
    actual = base_length(value)
    return None if actual == guard.expected else mismatch(guard, "length", guard.expected, actual)


def write_keys(writer: SourceWriter, guard: Guard) -> str:
    """The text of "has these keys in this order"."""
    value, expected = writer.read(guard.source), writer.constant(tuple(guard.expected))
    keys = f"tuple({value})" if writer.type_of(guard.source) in _PLAIN_DICTS else ""
    if not keys:
        writer.namespace["keys_of"] = keys_of
        keys = f"keys_of({value})"
    if all(type(key) is str for key in guard.expected):
        # Types first: an instance of a subclass of `str` equals a text, and asks the program.
        kinds = writer.constant((str,) * len(guard.expected))
        return f"(*map(type, (keys := {keys})),) == {kinds} and keys == {expected}"
    writer.namespace["same_constant"] = same_constant
    return f"same_constant({keys}, {expected})"


def explain_keys(guard: Guard, value: object, others: Values) -> str | None:
    """Which keys there are now."""
    actual, expected = keys_of(value), tuple(guard.expected)
    if same_constant(actual, expected):
        return None
    if len(actual) != len(expected):
        return mismatch(guard, "number of keys", len(expected), len(actual))
    return mismatch(guard, "keys", short_text(list(expected)), short_text(list(actual)))


def write_contains(writer: SourceWriter, guard: Guard) -> str:
    """The text of "has the key", or of "has it not"."""
    key, present = guard.expected
    writer.namespace["has_key"] = has_key
    call = f"has_key({writer.read(guard.source)}, {writer.constant(key)})"
    return call if present else f"not {call}"


def explain_contains(guard: Guard, value: object, others: Values) -> str | None:
    """That the key came or went."""
    key, present = guard.expected
    if has_key(value, key) is present:
        return None
    return f"'{guard.source}' {'no longer has' if present else 'now has'} the key {short_text(key)}"


def write_lacks(writer: SourceWriter, guard: Guard) -> str:
    """The text of "has none of these keys"."""
    return f"{writer.constant(frozenset(guard.expected))}.isdisjoint({writer.read(guard.source)})"


def explain_lacks(guard: Guard, value: Any, others: Values) -> str | None:
    """Which of the keys came."""
    found = sorted(map(short_text, frozenset(guard.expected).intersection(value)))
    return f"'{guard.source}' now has the key {found[0]}" if found else None


def write_has_attribute(writer: SourceWriter, guard: Guard) -> str:
    """The text of "has the attribute", or of "has it not"."""
    name, present = guard.expected
    writer.namespace["has_attribute"] = has_attribute
    call = f"has_attribute({writer.read(guard.source)}, {name!r})"
    return call if present else f"not {call}"


def explain_has_attribute(guard: Guard, value: object, others: Values) -> str | None:
    """That the attribute came or went."""
    name, present = guard.expected
    if has_attribute(value, name) is present:
        return None
    return f"'{guard.source}' {'no longer has' if present else 'now has'} the attribute {name!r}"
