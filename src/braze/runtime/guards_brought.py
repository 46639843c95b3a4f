"""Lists, tuples and dicts that each call brings along: a batch, keys and values, `**kwargs`.

    L['past'][1][0]   ->   the local is a tuple of two; what is in it is in slots 0 and 1
                           slot 1 is a tuple of two; what is in it is in slots 2 and 3
                           slot 2

Nothing here is an address that must be the same, as in `guards_pins.py`: containers are compared by
their class and size, and dicts by their keys in order. What is in them then is compared by facts or
value. Containers of other classes, and what is inside of them, stay generated Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, final

from braze.ir.source import ItemSource, LocalSource, Source
from braze.runtime.guards_pins import is_plain_key

# Each call looks at all that is in a container.
_MOST_ITEMS = 256
_COMPARED: Final = (bool, int, float, str, type(None))


class Found(NamedTuple):
    """where: a local's name, or a slot. value: what is there now."""

    where: str | int
    value: Any


@final
class Brought:
    """What is asked of one frame's containers; those around others come first.

    containers: (where, class, count or keys) of each: rows for guard_brought.cpp.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        """values: the frame's locals."""
        self.values = values
        self.containers: list[tuple[str | int, type, int | tuple[Any, ...]]] = []
        self._slots = 0
        self._first: dict[str | int, int] = {}

    def find(self, source: Source | None) -> Found | None:
        """A local, or what is in a container that a call brings along."""
        if type(source) is LocalSource:
            known = source.name in self.values
            return Found(source.name, self.values[source.name]) if known else None
        if type(source) is not ItemSource:
            return None
        base = self.find(source.base)
        if base is None or not self.holds(base):
            return None
        index = _index_of(base.value, source.key)
        if index is None:
            return None
        return Found(self._first[base.where] + index, base.value[source.key])

    def holds(self, found: Found) -> bool:
        """Whether it is a container whose class, size and keys are compared from now on."""
        where, value = found
        if where in self._first:
            return True
        cls = type(value)
        if cls not in (list, tuple, dict) or len(value) > _MOST_ITEMS:
            return False
        if cls is dict and not all(map(is_plain_key, value)):
            return False
        self._first[where] = self._slots
        self._slots += len(value)
        self.containers.append((where, cls, tuple(value) if cls is dict else len(value)))
        return True

    def container(self, source: Source | None) -> Any:
        """The container at the source, compared from now on; None where there is none such."""
        found = self.find(source)
        return found.value if found is not None and self.holds(found) else None


def is_compared(value: Any) -> bool:
    """Whether guard_brought.cpp tells the constant from all others."""
    return type(value) in _COMPARED


def _index_of(container: Any, key: Any) -> int | None:
    if type(container) is dict:
        same = [i for i, k in enumerate(container) if type(k) is type(key) and k == key]
        return same[0] if same else None
    if type(key) is not int or not -len(container) <= key < len(container):
        return None
    return key % len(container)
