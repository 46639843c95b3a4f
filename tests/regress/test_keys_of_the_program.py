"""Keys whose `__hash__` and `__eq__` are the program's, in dicts of instances, modules, classes and
calls: eager's result, and no fault of Braze's."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.trace import FAULTS


class Key:
    """Equal to text, and each question is counted."""

    asked = 0

    def __init__(self, name: str = "other") -> None:
        self.name = name

    def __hash__(self) -> int:
        Key.asked += 1
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        Key.asked += 1
        name = other.name if type(other) is Key else other
        return bool(self.name == name)


class Text(str):
    def __hash__(self) -> int:
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True


class Opaque:
    def __hash__(self) -> int:
        return 3

    def __eq__(self, other: object) -> bool:
        return self is other


class Raising:
    def __hash__(self) -> int:
        raise ZeroDivisionError("hash")


class Unequal:
    def __hash__(self) -> int:
        return hash("here")

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("eq")


class Plain:
    def __init__(self) -> None:
        self.here = 1


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.here = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


KEYS: dict[str, Callable[[], Any]] = {
    "key": Key,
    "key like a name": lambda: Key("here"),
    "text": lambda: Text("here"),
    "opaque": Opaque,
    "raising": Raising,
    "unequal": Unequal,
    "number": lambda: 7,
}


def _of_class() -> Any:
    return vars(type("Made", (), {"here": 1}))


DICTS: dict[str, Callable[[], Any]] = {
    "dict": lambda: {"here": 1},
    "instance": lambda: vars(Plain()),
    "module": lambda: vars(Module()),
    "buffers": lambda: Module()._parameters,
    "module of Python": lambda: vars(types.ModuleType("made")),
    "class": _of_class,
    "proxy": lambda: types.MappingProxyType({"here": 1}),
    "namespace": lambda: vars(types.SimpleNamespace(here=1)),
}


def _stored(held: Any, key: Any) -> Any:
    held[key] = 0
    return len(held)


def _deleted(held: Any, key: Any) -> Any:
    held[key] = 0
    del held[key]
    return len(held)


def _keywords(held: Any, key: Any) -> Any:
    def takes(**given: Any) -> Any:
        return len(given)

    return takes(**{key: 1})


def _caught(held: Any, key: Any) -> Any:
    try:
        return held[key]
    except (KeyError, ZeroDivisionError) as error:
        return type(error).__name__


QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "store": _stored,
    "delete": _deleted,
    "item": lambda held, key: held[key],
    "caught": _caught,
    "get": lambda held, key: held.get(key, "none"),
    "in": lambda held, key: key in held,
    "setdefault": lambda held, key: held.setdefault(key, 4),
    "pop": lambda held, key: held.pop(key, None),
    "update": lambda held, key: (held.update({key: 1}), len(held)),
    "merged": lambda held, key: len({**held, key: 1}),
    "or": lambda held, key: len(held | {key: 2}),
    "keywords": _keywords,
}
OWNERS: dict[str, Callable[[Any, Any], Any]] = {
    "store in an instance": lambda owner, key: owner.__dict__.__setitem__(key, 0),
    "read an instance": lambda owner, key: (owner.__dict__.get(key), owner.here),
    "store, then read": lambda owner, key: (_stored(owner.__dict__, key), owner.here),
    "store in vars": lambda owner, key: (_stored(vars(owner), key), vars(owner)["here"]),
}


def _observed(f: Any, make: Callable[[], Any], key: Callable[[], Any]) -> list[Any]:
    found: list[Any] = []
    held = make()
    for _ in range(3):
        Key.asked = 0
        try:
            found.append(repr(f(torch.ones(2), held, key())))
        except Exception as error:
            found.append((type(error).__name__, str(error)[:50]))
        found.append(len(held) if hasattr(held, "__len__") else len(vars(held)))
    return found


def _check(ask: Callable[[Any, Any], Any], make: Any, key: Any) -> None:
    def f(x: torch.Tensor, held: Any, key: Any) -> Any:
        return x + 1, ask(held, key)

    want = _observed(f, make, key)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = _observed(braze.compile(f), make, key)
    assert got == want
    said = [str(one.message) for one in caught]
    assert not [text for text in said if any(f"[{code}]" in text for code in FAULTS)]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("held", DICTS)
def test_dicts(held: str, question: str) -> None:
    for key in KEYS.values():
        _check(QUESTIONS[question], DICTS[held], key)


@pytest.mark.parametrize("question", OWNERS)
@pytest.mark.parametrize("owner", [Plain, Module])
def test_dicts_of_instances(owner: Any, question: str) -> None:
    for key in KEYS.values():
        _check(OWNERS[question], owner, key)


@pytest.mark.parametrize("read", ["here", "other", "absent"])
@pytest.mark.parametrize("owner", [Plain, Module])
@pytest.mark.parametrize("key", KEYS)
def test_reads_of_instances_that_hold_such_a_key(key: str, owner: Any, read: str) -> None:
    def make() -> Any:
        made = owner()
        if key != "raising":
            made.__dict__.pop("here")
            made.__dict__[KEYS[key]()] = 3
        return made

    def ask(held: Any, key: Any) -> Any:
        try:
            return getattr(held, read, "none")
        except ZeroDivisionError as error:
            return str(error)

    _check(ask, make, KEYS[key])
