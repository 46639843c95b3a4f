"""Texts with sizes in them at the border to C code, which reads the characters of a `str` and asks
nobody: what a text shows is specialised before real code reads it, however deep it lies in the
arguments, and where a callback or an iterator of the program hands it over meanwhile.

`", ".join([f"{n}"])` compiled for one n was served to all others: no method of the text was called.
"""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import types
from collections.abc import Iterable, Iterator
from typing import Any

from braze.capture.state.lazy_strings import ShownText
from braze.capture.state.opaque_objects import asks_no_items, looks_up, only_keeps

# What goes through values without reading any, now or later.
_PASSES_ON = {
    id(function)
    for function in (
        dict,
        dict.items,
        dict.values,
        filter,
        itertools.chain,
        itertools.islice,
        itertools.starmap,
        list.copy,
        map,
    )
}
# What C code walks without calling the program. Keys and members of sets are hashed, which asks.
_HOLDERS = (
    tuple,
    list,
    dict,
    collections.deque,
    slice,
    functools.partial,
    types.MappingProxyType,
    types.MethodType,
    type({}.items()),
    type({}.values()),
    *[type(iter(kind())) for kind in (tuple, list, collections.deque)],
    type(iter({}.items())),
    type(iter({}.values())),
    type(reversed([])),
    enumerate,
    filter,
    map,
    reversed,
    zip,
    *[kind for kind in vars(itertools).values() if isinstance(kind, type)],
)


def settle_read(function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Specialise what those texts show that real code may read of its arguments."""
    if _passes_on(function):
        return
    values: Iterable[Any] = (args, kwargs)
    if args and not kwargs and asks_no_items(function, args[0]):
        values = [value for value in args if not issubclass(type(value), _HOLDERS)]
    elif args and not kwargs and looks_up(function, args[0]):
        values = args[1:2]
    for text in _texts_in(values):
        text.settle()


def handed_over(reader: object, value: object) -> object:
    """What the program gives to C code that called it. reader: the real code that runs, if any."""
    if type(value) is ShownText and reader is not None and not _passes_on(reader):
        value.settle()
    return value


def _passes_on(function: object) -> bool:
    return only_keeps(function) or id(function) in _PASSES_ON


def _texts_in(values: Iterable[Any]) -> Iterator[ShownText]:
    waiting = list(values)
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        cls = type(value)
        if cls is ShownText:
            yield value
        elif issubclass(cls, _HOLDERS) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(gc.get_referents(value))
