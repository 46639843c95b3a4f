"""Two arguments that are two objects at one call and one at the next, asked about in many ways.

Found by a random program: `if g_t is x` was answered once, by the objects of the first call, and
nothing guarded the answer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


class Box:
    """A class whose instances compare by identity."""


def by_is(a, b, x):
    return x + (1 if a is b else 2)


def by_operator(a, b, x):
    return x + (1 if operator.is_(a, b) else 2)


def by_id(a, b, x):
    return x + len({id(a), id(b)})


def by_memo(a, b, x):
    seen: dict[int, int] = {}
    for value in (a, b):
        seen.setdefault(id(value), len(seen))
    return x + len(seen)


def by_key(a, b, x):
    return x + {a: 1}.get(b, 2)


def by_set(a, b, x):
    return x + len({a, b})


def by_equality(a, b, x):
    return x + (1 if a == b else 2)


def by_equality_of_lists(a, b, x):
    return x + (1 if [a] == [b] else 2)


def by_index(a, b, x):
    return x + [b, a].index(a)


def by_attributes(a, b, x):
    return x + (1 if a.value is b.value else 2)


QUESTIONS = (
    by_is, by_operator, by_id, by_memo, by_key, by_set, by_equality, by_equality_of_lists,
    by_index, by_attributes,
)  # fmt: skip
MAKERS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.ones(2),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "module": lambda: torch.nn.Linear(1, 1),
    "list": lambda: [1],
    "dict": lambda: {1: 2},
    "set": lambda: {1},
    "object": Box,
    "function": lambda: lambda: 1,
    "class": lambda: type("K", (), {}),
}


def answers(question: Callable[..., Any], kind: str, order: tuple[bool, ...]) -> list[Any]:
    """What the question answers of one object twice (True) and of two."""
    make, found = MAKERS[kind], []
    for same in order:
        a = make()
        b = a if same else make()
        if question.__name__ == "by_attributes":
            first, second = Box(), Box()
            first.value, second.value = a, b  # type: ignore[attr-defined]
            a, b = first, second
        try:
            found.append(question(a, b, torch.zeros(1)).item())
        except (TypeError, RuntimeError) as error:  # lists as keys, truth of tensors
            found.append(type(error).__name__)
    return found


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.__name__)
def test_one_object_or_two(question: Callable[..., Any], kind: str) -> None:
    for order in ((False, True), (True, False)):
        braze.reset()
        compiled = braze.compile(question, backend="aot_eager")
        compiled.__name__ = question.__name__
        assert answers(compiled, kind, order) == answers(question, kind, order), order
