"""Hashes that tuples from outside keep, from CPython 3.14 on.

    key = (obj, 3)          # hashed before the call: asks `obj.__hash__`, and keeps the number
    {(a, 3), key}           # in the frame: asks `a.__hash__`, and `obj` nothing

What `obj.__hash__` reads decides what the frame computes, so it has to be in the guards. Before C
code hashes a tuple that was there before the call, a new tuple of the same items is hashed, whose
items are asked. Eager may not ask them: an answer that changes something, or raises, is a graph
break. Tuples that were made in the frame are asked as often as in eager.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Container, Iterator
from typing import Any

from braze.capture.calls.c_allowlist import identifier
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.compat.python.bytecode_versions import BYTECODE


def ask_items(
    function: object,
    args: tuple[object, ...],
    known: Container[int],
    ask: Callable[[object], object],
    marks: Callable[[], object],
) -> None:
    """Ask the items of the tuples that a C function is to hash.

    known: identities of objects that were there before the call. ask: hashes a value, with the
    program's `__hash__` interpreted. marks: a value that differs where the program has changed
    something since.
    Raises BreakRequested where a hash changes something or raises.
    """
    if not BYTECODE.tuples_keep_hashes:
        return
    for value in _hashed_by(function, args):
        for key in _kept(value, known):
            if not _is_hashable(key):
                continue  # the function raises, as the tuple keeps no hash
            before = marks()
            try:
                ask(_without_hash(key))
            except ProgramRaised:
                raise BreakRequested("unsupported-container", "a key whose hash raises") from None
            if marks() != before:
                raise BreakRequested("unsupported-container", "a key whose hash changes something")


# --- private ---------------------------------------------------------------------------------


def _hashed_by(function: object, args: tuple[Any, ...]) -> Iterator[object]:
    """The arguments, and the members of arguments, that a function hashes."""
    if function is hash:
        yield from args[:1]
    elif function in _OF_A_KEY:
        if len(args) > 1 and not issubclass(type(args[0]), _COMPARING):
            yield args[1]
    elif function in _OF_MEMBERS or identifier(function) == _COUNTER:
        for arg in args:
            yield from arg if type(arg) in (list, tuple) else ()
    elif function in _OF_PAIRS:
        pairs = (pair for arg in args if type(arg) in (list, tuple) for pair in arg)
        yield from (pair[0] for pair in pairs if type(pair) in (list, tuple) and pair)


def _kept(value: Any, known: Container[int]) -> Iterator[tuple[object, ...]]:
    """The tuples from outside in a key: itself, or those among its items."""
    if not _is_by_items(value):
        return
    if id(value) in known:
        yield value
        return
    for item in tuple.__iter__(value):
        yield from _kept(item, known)


def _is_by_items(value: object) -> bool:
    return issubclass(type(value), tuple) and type(value).__hash__ is _BY_ITEMS


def _without_hash(key: Any) -> object:
    """A tuple of the same items, and so of the same hash, that does not know it."""
    if not _is_by_items(key):
        return key
    return tuple([_without_hash(item) for item in tuple.__iter__(key)])


def _is_hashable(key: Any) -> bool:
    if _is_by_items(key):
        return all(map(_is_hashable, tuple.__iter__(key)))
    return type(key).__hash__ is not None


_BY_ITEMS: Any = tuple.__hash__
# What finds items by comparison alone.
_COMPARING = (list, tuple, collections.deque)
_SETS = (set, frozenset)
_OF_A_KEY = frozenset(
    {operator.contains, operator.getitem, operator.setitem, operator.delitem}
    | {dict.get, dict.pop, dict.setdefault, dict.__contains__, dict.__getitem__}
    | {dict.__setitem__, dict.__delitem__, set.add, set.discard, set.remove, set.__contains__}
    | {frozenset.__contains__}
)
_OF_MEMBERS = frozenset(
    {set, frozenset, dict.fromkeys, set.update}
    | {getattr(kind, name) for kind in _SETS for name in ("union", "issubset", "issuperset")}
    | {getattr(kind, name) for kind in _SETS for name in ("intersection", "difference")}
    | {getattr(kind, name) for kind in _SETS for name in ("symmetric_difference", "isdisjoint")}
    | {set.intersection_update, set.difference_update, set.symmetric_difference_update}
)
_OF_PAIRS = frozenset({dict, dict.update})
# The function in C that a Counter counts by.
_COUNTER = ("_collections", "_count_elements")
