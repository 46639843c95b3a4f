"""Tuples of classes of their own, from outside: what C code reads of them is guarded."""

from __future__ import annotations

import collections
import copy
import os
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

Point = collections.namedtuple("Point", "a b")


class Typed(typing.NamedTuple):
    a: int
    b: int


class Slotted(tuple[int, ...]):
    __slots__ = ()


class WithDict(tuple[int, ...]):
    pass


class Measured(Typed):
    def __abs__(self) -> int:
        return self.a + self.b


def _structure(items: tuple[int, ...]) -> Any:
    return os.terminal_size(items)


CLASSES: dict[str, Callable[[tuple[int, ...]], Any]] = {
    "namedtuple": lambda items: Point(*items),
    "NamedTuple": lambda items: Typed(*items),
    "derived": lambda items: Measured(*items),
    "slotted": Slotted,
    "with a dict": WithDict,
    "structure": _structure,
}
QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "repr": repr,
    "str": str,
    "f-string": lambda t: f"{t}",
    "%": lambda t: "%s, %s" % t,  # noqa: UP031
    "format": "{0} {0[1]}".format,
    "==": lambda t: t == (1, 2),
    "!=": lambda t: t != (1, 2),
    "<": lambda t: t < (1, 3),
    "+": lambda t: t + (5,),
    "r+": lambda t: (5,) + (*t,),
    "*": lambda t: t * 2,
    "in": lambda t: 2 in t,
    "hash": hash,
    "count": lambda t: t.count(2),
    "index": lambda t: t.index(t[1]),
    "len": len,
    "slice": lambda t: t[1:],
    "sum": sum,
    "max": max,
    "sorted": lambda t: sorted(t, reverse=True),
    "list": list,
    "dict key": lambda t: {(1, 2): "found"}.get(t),
    "set": lambda t: {(1, 2), t},
    "unpacked": lambda t: [*t, *reversed(t)],
    "zip": lambda t: [*zip(t, t)],
    "join": lambda t: ",".join(map(str, t)),
    "kept": lambda t: [t, t][0] is t,
    "appended": lambda t: _appended(t) is t,
    "isinstance": lambda t: isinstance(t, Typed),
    "copied": lambda t: copy.copy(t),
    "replaced": lambda t: t._replace(a=7) if hasattr(t, "_replace") else t,
    "as dict": lambda t: t._asdict() if hasattr(t, "_asdict") else t,
    "size": lambda t: torch.zeros(t).shape,
}


def _appended(value: Any) -> Any:
    kept: list[Any] = []
    kept.append(value)
    return kept[0]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("name", CLASSES)
def test_items_are_guarded(name: str, question: str) -> None:
    make, ask = CLASSES[name], QUESTIONS[question]

    def f(x: torch.Tensor, value: Any) -> Any:
        return x + 1, ask(value)

    compiled, x = braze.compile(f), torch.ones(2)
    for items in ((1, 2), (1, 3), (2, 1), (1, 2)):
        value = make(items)
        want, got = f(x, value), compiled(x, value)
        assert type(got[1]) is type(want[1]) and repr(got[1]) == repr(want[1]), items
        assert torch.equal(got[0], want[0])


def test_tensors_in_it_are_no_break() -> None:
    def f(x: torch.Tensor, value: Any) -> Any:
        found = [value]
        found.append(value)
        return x + found[0].a, found[1] is value, value + (x,)

    report = braze.explain(f)(torch.ones(2), Point(torch.ones(2), 1))
    assert report.graph_count == 1 and not report.break_reasons
