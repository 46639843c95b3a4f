"""Lists, tuples and dicts that each call brings along: a batch, keys and values, `**kwargs`.

    L['past'][1][0]   ->   the local is a tuple of two; item 1 is in slot 0
                           slot 0 is a tuple of two; item 0 is in slot 1
                           slot 1

Nothing here is an address that must be the same, as in `guards_pins.py`: containers are compared
by their class and, where the program depends on it, their size, dicts by their keys in order. What
is in them then is compared by facts or value. Containers of other classes, and what is inside of
them, stay generated Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, final

from braze.ir.captured.source import ItemSource, LocalSource, Source
from braze.runtime.guards.snapshot_accessors import is_plain_key

# Each call may look at all that is in a container.
_MOST_ITEMS = 256
_COMPARED: Final = (bool, int, float, str, type(None))


class Found(NamedTuple):
    """where: a local's name, or a slot. value: what is there now."""

    where: str | int
    value: Any


@final
class Container:
    """What is asked of a container. slots: of what is looked for, by key or index; is_exact: its
    size is compared, of a dict all keys, in order."""

    __slots__ = ("is_exact", "slots", "value", "where")

    def __init__(self, found: Found) -> None:
        self.where, self.value = found
        self.slots: dict[Any, int] = {}
        self.is_exact = False

    def row(self) -> tuple[object, ...]:
        """(where, class, count or keys or None, key or index and slot of each item)."""
        cls = type(self.value)
        shape = tuple(self.value) if cls is dict else len(self.value)
        items = tuple([x for pair in self.slots.items() for x in pair])
        return self.where, cls, shape if self.is_exact else None, items


@final
class Brought:
    """What is asked of one frame's containers; those around others come first."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """values: the frame's locals."""
        self.values = values
        self._containers: dict[str | int, Container] = {}
        self._slots = 0

    def rows(self) -> tuple[tuple[Any, ...], ...]:
        """The containers, as guard_brought.cpp reads them."""
        return tuple([container.row() for container in self._containers.values()])

    def find(self, source: Source | None) -> Found | None:
        """A local, or what is in a container that a call brings along."""
        if type(source) is LocalSource:
            known = source.name in self.values
            return Found(source.name, self.values[source.name]) if known else None
        if type(source) is not ItemSource:
            return None
        container = self._container(self.find(source.base))
        if container is None:
            return None
        key = _place_of(container.value, source.key)
        if key is None:
            return None
        if key not in container.slots:
            container.slots[key] = self._slots
            self._slots += 1
        container.is_exact |= type(container.value) is not dict and key != source.key
        return Found(container.slots[key], container.value[key])

    def container(self, source: Source | None, *, is_exact: bool) -> object:
        """The container at the source, whose class is compared from now on, and if it is exact its
        size and keys; None where there is none such."""
        container = self._container(self.find(source))
        if container is None:
            return None
        container.is_exact |= is_exact
        return container.value

    def _container(self, found: Found | None) -> Container | None:
        if found is None:
            return None
        known = self._containers.get(found.where)
        if known is not None:
            return known
        cls = type(found.value)
        if cls not in (list, tuple, dict) or len(found.value) > _MOST_ITEMS:
            return None
        if cls is dict and not all(map(is_plain_key, found.value)):
            return None
        return self._containers.setdefault(found.where, Container(found))


def is_compared(value: object) -> bool:
    """Whether guard_brought.cpp tells the constant from all others."""
    return type(value) in _COMPARED


def _place_of(container: Any, key: object) -> object:
    """The key as it is in the dict, or an index from the front; None where it is not there."""
    if type(container) is dict:
        same = [known for known in container if type(known) is type(key) and known == key]
        return same[0] if same else None
    if type(key) is not int or not -len(container) <= key < len(container):
        return None
    return key % len(container)
