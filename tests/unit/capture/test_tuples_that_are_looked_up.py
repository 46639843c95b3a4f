"""Tuples from outside that C code hashes and compares: what they hold is guarded."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import braze


@dataclass(frozen=True)
class Frozen:
    number: int


class Hashed:
    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and self.number == other.number


Pair = collections.namedtuple("Pair", "first second")
FUNCTIONS = (torch.cos, torch.relu, torch.tanh, torch.sin)
MODULES = tuple(torch.nn.Linear(1, 1) for _ in range(4))
OBJECTS = tuple(object() for _ in range(4))

MEMBERS: dict[str, Callable[[int], Any]] = {
    "frozen": Frozen,
    "hashed": Hashed,
    "function": FUNCTIONS.__getitem__,
    "module": MODULES.__getitem__,
    "object": OBJECTS.__getitem__,
    "tuple": lambda n: (n, (Hashed(n),)),
    "named": lambda n: Pair(n, Frozen(n)),
    "frozenset": lambda n: frozenset({Hashed(n)}),
}

Made = Callable[[int], Any]


def _stored(x: torch.Tensor, key: Any, made: Made) -> Any:
    held = {(made(1), 3): 1.0}
    held[key] = 5.0
    return x * len(held)


def _popped(x: torch.Tensor, key: Any, made: Made) -> Any:
    held = {(made(1), 3): 1.0, (made(2), 3): 4.0}
    return x * held.pop(key, 0.0) + len(held)


PROGRAMS: dict[str, Callable[[torch.Tensor, Any, Made], Any]] = {
    "get": lambda x, key, made: x * {(made(1), 3): 2.0, (made(2), 3): 3.0}.get(key, 9.0),
    "in a set": lambda x, key, made: x + (key in {(made(1), 3), (made(2), 3)}),
    "in a list": lambda x, key, made: x + (key in [(made(1), 3), (made(2), 3)]),
    "equal": lambda x, key, made: x + (key == (made(1), 3)) + 2 * ((made(2), 3) != key),
    "a member": lambda x, key, made: x * len({(made(1), 3), key}),
    "counted": lambda x, key, made: x * [key, (made(1), 3)].count((made(1), 3)),
    "index": lambda x, key, made: x * [(made(0), 3), key, (made(1), 3)].index((made(1), 3)),
    "stored": _stored,
    "popped": _popped,
}


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_tuples_that_change(name: str, member: str) -> None:
    program, made = PROGRAMS[name], MEMBERS[member]
    compiled = braze.compile(program, backend="eager", fullgraph=True)
    x = torch.arange(3.0)
    for number in (1, 2, 3, 1):
        key = (made(number), 3)
        expected = program(x, key, made).tolist()  # from 3.14 on the key keeps its hash
        assert compiled(x, key, made).tolist() == expected, number


@pytest.mark.parametrize("member", [name for name in MEMBERS if name != "frozenset"])
def test_dicts_keyed_by_tuples_of_objects(member: str) -> None:
    def program(held: dict[Any, float], x: torch.Tensor, key: Any) -> Any:
        for place, value in enumerate(held.values()):
            x = x * value + place
        return x * held.get(key, 100.0), key in held

    made = MEMBERS[member]
    options = {"recompile_limit": 64}
    compiled = braze.compile(program, backend="eager", fullgraph=True, options=options)
    held: dict[Any, float] = {(made(1), 3): 2.0, (made(2), 3): 3.0}
    x = torch.arange(3.0)
    changes: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: held.update({(made(1), 3): 4.0}),
        lambda: held.update({(made(3), 3): 5.0}),
        lambda: held.pop((made(1), 3)),
        lambda: held.update({(made(2), 3): held.pop((made(2), 3))}),
    )
    for change in changes:
        change()
        for number in (1, 2, 3):
            key = (made(number), 3)
            expected, found = program(held, x, key), compiled(held, x, key)
            assert (found[0].tolist(), found[1]) == (expected[0].tolist(), expected[1])


def _refuses(action: Callable[[], Any]) -> int:
    try:
        action()
    except KeyError:
        return 1
    return 0


def _deleted(key: Any, made: Made) -> Any:
    held = {(made(1), 3): 1.0, (made(2), 3): 4.0}
    return _refuses(lambda: held.__delitem__(key)) + 2 * len(held)


def _discarded(key: Any, made: Made) -> Any:
    held = {(made(1), 3), (made(2), 3)}
    held.discard(key)
    return len(held)


def _updated(key: Any, made: Made) -> Any:
    held, pairs = {(made(1), 3)}, {(made(1), 3): 1.0}
    held.update([key])
    pairs.update([(key, 5.0)])
    return len(held) + sum(pairs.values())


@functools.lru_cache(maxsize=64)
def _number_of(key: Any) -> int:
    first = key[0]
    return first.number if isinstance(first, Hashed) else first[0].number


# What hashes a key, but for the programs above.
HASHING: dict[str, Callable[[Any, Made], Any]] = {
    "hash": lambda key, made: hash(key) % 97,
    "frozenset": lambda key, made: len(frozenset((key, (made(1), 3)))),
    "display": lambda key, made: sum({(made(1), 3): 4, key: 1}.values()),
    "comprehension": lambda key, made: len({each for each in ((made(1), 3), key) if each}),
    "keys": lambda key, made: len(dict.fromkeys([key, (made(1), 3)])),
    "union": lambda key, made: len({(made(1), 3)}.union([key])),
    "difference": lambda key, made: len({(made(1), 3), (made(2), 3)}.difference([key])),
    "deleted": _deleted,
    "discarded": _discarded,
    "updated": _updated,
    "within": lambda key, made: len({(key, 1), ((made(1), 3), 1)}),
    "counter": lambda key, made: len(collections.Counter([key, (made(1), 3)])),
    "iterator": lambda key, made: len(set(iter([key, (made(1), 3)]))),
    "generator": lambda key, made: len(frozenset(e for e in [key, (made(1), 3)] if e)),
    "cached": lambda key, made: _number_of(key),
}
# These break at keys that are named tuples: a key's text in a KeyError, a hash that a class gives.
BREAKING = frozenset({"hash", "deleted", "cached"})
SHAPES: dict[str, Callable[[Any], Any]] = {
    "plain": lambda item: (item, 3),
    "named": lambda item: Pair(item, 3),
    "nested": lambda item: ((item,), 3),
}


@pytest.mark.parametrize("name", HASHING)
def test_tuples_that_know_their_hash(name: str) -> None:
    def program(x: torch.Tensor, key: Any) -> Any:
        return x + HASHING[name](key, Hashed)

    x = torch.arange(3.0)
    for shape in SHAPES.values():
        compiled = braze.compile(program, backend="eager", fullgraph=name not in BREAKING)
        for number in (1, 2, 3, 1):
            key = shape(Hashed(number))
            hash(key)  # from 3.14 on the tuple keeps it
            assert compiled(x, key).tolist() == program(x, key).tolist(), number


def test_hashes_that_count_are_not_asked_for() -> None:
    """A key that knows its hash asks nobody, so that a capture may not, either."""

    class Counted:
        asked = 0

        def __hash__(self) -> int:
            Counted.asked += 1
            return 7

    def program(x: torch.Tensor, key: Any) -> Any:
        return x + len({key}) + (key in {1: 2})

    for shape in SHAPES.values():
        asked = []
        for function in (program, braze.compile(program, backend="eager")):
            Counted.asked, key = 0, shape(Counted())
            hash(key)
            function(torch.arange(3.0), key)
            asked.append(Counted.asked)
        assert asked[0] == asked[1]
