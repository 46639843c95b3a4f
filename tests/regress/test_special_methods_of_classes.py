"""C code that gets a class asks its metaclass, as it asks the class of an object."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

_METHODS: dict[str, Callable[..., Any]] = {
    "__bool__": lambda a: a.n > 1,
    "__len__": lambda a: a.n,
    "__lt__": lambda a, b: a.n < b.n,
    "__eq__": lambda a, b: a is b or a.n == b.n,
    "__hash__": lambda a: a.n,
    "__iter__": lambda a: iter([a.n]),
    "__index__": lambda a: a.n,
    "__contains__": lambda a, b: a.n == b,
    "__format__": lambda a, s: f"n{a.n}",
    "__repr__": lambda a: f"n{a.n}",
    "__getitem__": lambda a, k: a.n + k,
    "__add__": lambda a, b: a.n + b,
    "__neg__": lambda a: -a.n,
    "__float__": lambda a: float(a.n),
}
_QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "equal": lambda a, b: (a == b, a != b, [a] == [b], (a,) == (b,), a in [b], [b, a].index(a)),
    "members": lambda a, b: (len({a, b}), a in {b}, len({a: 1, b: 2}), {a: 1}.get(b), hash(a)),
    "frozen": lambda a, b: (len(frozenset([a, b])), len({(a, 1), (b, 1)}), len({a} & {b})),
    "truth": lambda a, b: (bool(a), not a, all([a, b]), any([a, b]), 1 if a else 2),
    "filter": lambda a, b: [x.n for x in filter(None, [a, b])],
    "filterfalse": lambda a, b: [x.n for x in itertools.filterfalse(None, [a, b])],
    "compress": lambda a, b: list(itertools.compress([1, 2], [a, b])),
    "takewhile": lambda a, b: len(list(itertools.takewhile(lambda x: x, [a, b]))),
    "dropwhile": lambda a, b: len(list(itertools.dropwhile(lambda x: x, [a, b]))),
    "order": lambda a, b: (sorted([a, b])[0].n, a < b, max([a, b]).n),
    "items": lambda a, b: (list(a), [*a, *b], 1 in a, list(zip(a, b)), set(a), a[3]),
    "numbers": lambda a, b: ([1, 2, 3][:a], list(range(a)), bin(a), float(a), -a, a + 1, len(a)),
    "text": lambda a, b: (str([a, b]), f"{a} {b}", format(a), repr(a)),
}


def _classes() -> tuple[Any, Any]:
    meta = type("Meta", (type,), dict(_METHODS))
    return meta("A", (), {"n": 1}), meta("B", (), {"n": 1})


def _objects() -> tuple[Any, Any]:
    kind = type("Kind", (), {**_METHODS, "n": 1})
    return kind(), kind()


@pytest.mark.parametrize("make", [_classes, _objects], ids=["classes", "objects"])
@pytest.mark.parametrize("name", _QUESTIONS)
def test_answers_follow_what_methods_read(name: str, make: Callable[[], tuple[Any, Any]]) -> None:
    first, second = make()
    ask, answers = _QUESTIONS[name], []
    compiled = braze.compile(lambda x: (x + 1, answers.append(ask(first, second)))[0])
    for first.n, second.n in ((1, 1), (1, 2), (2, 2), (1, 1)):
        expected = ask(first, second)
        compiled(torch.zeros(1))
        assert answers[-1] == expected, (first.n, second.n)
