"""Special methods that C code asks for: of members of enumerations, modules, aliases of objects and
callables. Each is asked as often as in eager, and for the answer that it gives at that call."""

from __future__ import annotations

import collections
import enum
import functools
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import braze
from braze.marks import MARKS, Mark

ASKED: list[str] = []
NUMBER = [3]


class Special:
    """Answers by a number that the program changes; each question is kept."""

    def __hash__(self) -> int:
        ASKED.append("hash")
        return NUMBER[0]

    def __eq__(self, other: object) -> bool:
        ASKED.append("eq")
        return self is other

    def __index__(self) -> int:
        ASKED.append("index")
        return NUMBER[0]

    def __repr__(self) -> str:
        ASKED.append("repr")
        return f"number {NUMBER[0]}"

    def __call__(self, x: Any) -> Any:
        return x + NUMBER[0]

    def method(self, x: Any) -> Any:
        return x + NUMBER[0]


class Member(Special, enum.Enum):
    ONE = 1
    OTHER = 2


class Number(Special, int, enum.Enum):
    ONE = 1
    OTHER = 2


class Text(Special, str, enum.Enum):  # noqa: UP042 - StrEnum has a __str__ of its own
    ONE = "one"
    OTHER = "other"


class Module(Special, types.ModuleType):
    pass


class Object(Special):
    pass


KINDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "member": lambda: (Member.ONE, Member.OTHER),
    "number": lambda: (Number.ONE, Number.OTHER),
    "text": lambda: (Text.ONE, Text.OTHER),
    "module": lambda: (Module("one"), Module("other")),
    "object": lambda: (Object(), Object()),
    "tuple": lambda: ((Object(), 1), (Object(), 1)),
    "alias": lambda: (list[Object()], list[Object()]),  # type: ignore[misc]
    "member in an alias": lambda: (list[Member.ONE], list[Member.OTHER]),  # type: ignore[name-defined]
    "frozen set": lambda: (frozenset([Object()]), frozenset([Object()])),
    "method": lambda: (Object().method, Object().method),
}


@functools.lru_cache
def cached(value: Any) -> int:
    ASKED.append("computed")
    return NUMBER[0]


QUESTIONS: dict[str, Callable[[Any, Any, Any, dict[Any, Any]], Any]] = {
    "hash": lambda x, a, b, d: hash(a) if type(a) is not types.MethodType else 0,
    "a set": lambda x, a, b, d: len({a, b, a}),
    "a frozenset": lambda x, a, b, d: len(frozenset([a, b])),
    "a dict": lambda x, a, b, d: len({a: 1, b: 2}),
    "fromkeys": lambda x, a, b, d: len(dict.fromkeys([a, b])),
    "Counter": lambda x, a, b, d: len(collections.Counter([a, b, a])),
    "an entry is stored": lambda x, a, b, d: d.__setitem__(a, 1),
    "an entry is found": lambda x, a, b, d: d.get(a, 7),
    "an entry is deleted": lambda x, a, b, d: d.pop(a, 7),
    "a set that leaves": lambda x, a, b, d: len([{a}, x]),
    "in a tuple": lambda x, a, b, d: len({(a, 1)}),
    "==": lambda x, a, b, d: a == b,
    "in": lambda x, a, b, d: a in [b, a],
    "count": lambda x, a, b, d: [a, b].count(b),
    "index": lambda x, a, b, d: [a, b].index(b),
    "a cache": lambda x, a, b, d: cached(a),
}
OF_NUMBERS: dict[str, Callable[[Any, Any, Any, dict[Any, Any]], Any]] = {
    "repeated": lambda x, a, b, d: len([0] * a),
    "range": lambda x, a, b, d: len(range(a)),
    "item": lambda x, a, b, d: [*range(10)][a],
    "repr": lambda x, a, b, d: (repr([a]), f"{a!r}", f"{a!r:>9}"),
}


def _asks(question: Any, a: Any, b: Any) -> Any:
    def program(x: torch.Tensor, d: dict[Any, Any]) -> Any:
        return x.sin() + 1, question(x, a, b, d)

    return program


def _played(program: Any) -> list[Any]:
    seen: list[Any] = []
    cached.cache_clear()
    entries: dict[Any, Any] = {}
    for number in (3, 3, 9, 9):
        NUMBER[0] = number
        ASKED.clear()
        value, answer = program(torch.ones(2), entries)
        shown = repr(answer) if isinstance(answer, tuple) else answer
        seen.append((value.tolist(), shown, [*ASKED], len(entries), [*entries.values()]))
    return seen


def _check(question: Any, kind: str) -> None:
    def made() -> tuple[Any, Any]:
        NUMBER[0] = 3  # a set keeps the hashes that its entries had
        return KINDS[kind]()

    expected = _played(_asks(question, *made()))
    explained: list[int] = []

    def counting(graph: Any, inputs: Any) -> Any:
        explained.append(len(graph.graph.nodes))
        return graph

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = braze.compile(_asks(question, *made()), backend=counting)
        assert _played(compiled) == expected
    assert explained  # the operators are in a graph, wherever it breaks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_are_asked_as_in_eager(question: str, kind: str) -> None:
    _check(QUESTIONS[question], kind)


@pytest.mark.parametrize("kind", ["member", "object"])
@pytest.mark.parametrize("question", OF_NUMBERS)
def test_numbers_and_texts_are_asked_as_in_eager(question: str, kind: str) -> None:
    _check(OF_NUMBERS[question], kind)


def _leaves(x: torch.Tensor, key: Any) -> Any:
    return x + 1, {key: 2}, {key}, frozenset([(key, 1)])


def test_containers_that_leave_ask_their_keys_once() -> None:
    asked: list[list[str]] = []
    for make in (lambda f: f, lambda f: braze.compile(f, backend="eager")):
        key, program = Object(), make(_leaves)
        for number in (3, 9):
            NUMBER[0] = number
            ASKED.clear()
            program(torch.ones(2), key)
            asked.append([*ASKED])
    assert asked[:2] == asked[2:]


@pytest.mark.parametrize("way", ["call", "map", "partial", "vmap", "checkpoint", "method"])
def test_callables_are_not_asked_for_their_hash(way: str) -> None:
    ways: dict[str, Callable[[Any, Any], Any]] = {
        "call": lambda f, x: f(x),
        "map": lambda f, x: sum(map(f, [x, x])),
        "partial": lambda f, x: functools.partial(f, x)(),
        "vmap": lambda f, x: torch.func.vmap(f)(x),
        "checkpoint": lambda f, x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False),
        "method": lambda f, x: types.MethodType(f, x)(),
    }
    called = Object()
    ASKED.clear()
    explanation = braze.explain(lambda x: ways[way](called, x))(torch.ones(2))
    assert ASKED == []
    assert explanation.graph_count == 1


@dataclass(frozen=True)
class Scale:
    by: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def test_an_equal_callable_is_not_marked() -> None:
    marked, equal = Scale(2.0), Scale(2.0)
    braze.disallow_in_graph(marked)
    assert marked == equal and hash(marked) == hash(equal)
    assert MARKS.of(marked) is Mark.DISALLOW_IN_GRAPH and MARKS.of(equal) is None


def test_a_mark_ends_with_what_is_marked() -> None:
    marked = Scale(2.0)
    braze.disallow_in_graph(marked)
    number = id(marked)
    assert number in MARKS.entries
    del marked
    assert number not in MARKS.entries
