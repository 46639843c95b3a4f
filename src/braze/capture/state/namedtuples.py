"""Classes that `collections.namedtuple` made in a frame."""

from __future__ import annotations

import operator
from typing import Any, final


@final
class NamedTuple:
    """A class of named tuples as it was when it was made."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self._space = self._parts()

    def _parts(self) -> list[object]:
        """What is in the dict of the class, and the defaults of the fields."""
        space = dict(vars(self._made))
        return [*space, *space.values(), *space.get("_field_defaults", {}).items()]

    def is_unchanged(self) -> bool:
        """Whether the program has not written to the class since."""
        parts = self._parts()
        same = len(parts) == len(self._space)
        return same and all(map(_is_same, parts, self._space))

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Those by which `namedtuple()` makes such a class again; names are final by now."""
        made = self._made
        keywords = {"rename": True, "module": made.__module__}
        if made.__new__.__defaults__ is not None:
            keywords["defaults"] = made.__new__.__defaults__
        return (made.__name__, made._fields), keywords


def _is_same(one: object, other: object) -> bool:
    if type(one) is type(other) is tuple:
        return len(one) == len(other) and all(map(operator.is_, one, other))
    return one is other
