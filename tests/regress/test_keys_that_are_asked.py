"""A key or a member with an `__eq__` of the program's own is asked as often as in eager.

Each method that `dir(dict)` has is called with a key, a key and a value, and a dict, where a plain
dict takes those arguments; so is each operator on one entry.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze

ASKED: list[str] = []


class Key(str):
    def __eq__(self, other: object) -> bool:
        ASKED.append("eq")
        return str.__eq__(self, other)

    __hash__ = str.__hash__


# What says something of the class, of memory or of attributes; and texts, which name no key.
_NO_LOOKUPS = {
    *dir(object),
    *("__class_getitem__", "__repr__", "fromkeys", "__init__", "__ror__", "__reversed__"),
} - {"__eq__", "__ne__"}
_ARGUMENTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "key": lambda key: (key,),
    "key and value": lambda key: (key, 7),
    "dict": lambda key: ({key: 7},),
}


def _methods() -> Iterator[tuple[str, Callable[[Any, Any], Any]]]:
    for name in sorted({*dir(dict)} - _NO_LOOKUPS):
        method = getattr(dict, name)
        for kind, arguments in _ARGUMENTS.items():
            try:
                method({"a": 1, "b": 2}, *arguments("a"))
            except (TypeError, ValueError):
                continue
            yield f"{name} of a {kind}", lambda d, key, m=method, a=arguments: m(d, *a(key))
    yield "d[key]", operator.getitem
    yield "d[key] = 7", lambda d, key: operator.setitem(d, key, 7)
    yield "del d[key]", operator.delitem
    yield "key in d", operator.contains


METHODS = dict(_methods())
# The key that is asked for, and what is in the dict.
KINDS: dict[str, Callable[[], tuple[Any, dict[Any, int]]]] = {
    "key": lambda: (Key("a"), {"a": 1, "b": 2}),
    "member": lambda: ("a", {Key("a"): 1, "b": 2}),
    "both": lambda: (Key("a"), {Key("a"): 1, "b": 2}),
    "absent": lambda: ("c", {Key("a"): 1, "b": 2}),
}


def _outcome(step: Callable[..., Any], kind: str) -> list[Any]:
    """Two calls, each with a dict of its own: asks, the result and what the dict is then."""
    outcomes = []
    for _ in range(2):
        key, table = KINDS[kind]()
        ASKED.clear()
        try:
            result = repr(step(torch.ones(2), key, table))
        except KeyError as error:
            result = f"KeyError: {error}"
        asked = len(ASKED)
        outcomes.append((asked, result, [(type(k), str(k), v) for k, v in table.items()]))
    return outcomes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["outside", "made in the frame"])
def test_asked_as_often(place: str, kind: str) -> None:
    differ = []
    for name, method in METHODS.items():

        def step(x: torch.Tensor, key: Any, table: Any, method: Any = method) -> Any:
            if place == "outside":
                return [method(table, key), x + 1]
            made = {k: v for k, v in table.items()}  # noqa: C416
            return [method(made, key), list(made.values()), x + 1]

        expected = _outcome(step, kind)
        actual = _outcome(braze.compile(step, backend="eager"), kind)
        if actual != expected:
            differ.append(f"{name}: eager {expected}, compiled {actual}")
    assert not differ, "\n".join(differ)


def test_guards_of_keys_ask_no_member() -> None:
    """An entry that was compiled for texts is tried, and refused, without a comparison."""

    def step(x: torch.Tensor, table: Any) -> Any:
        return [list(table), x + 1]

    compiled = braze.compile(step, backend="eager")
    for table in ({"a": 1, "b": 2}, {Key("a"): 1, "b": 2}, {"a": 1, "b": 2}):
        ASKED.clear()
        keys, _ = compiled(torch.ones(2), table)
        assert all(key is own for key, own in zip(keys, table, strict=True))
        assert not ASKED


def test_the_methods_are_those_of_dicts() -> None:
    assert {"get of a key", "pop of a key and value", "update of a dict", "d[key]"} <= {*METHODS}
    assert len(METHODS) > 15
