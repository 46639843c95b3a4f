"""Attributes of objects whose classes extend builtin ones are read as they were written."""

from __future__ import annotations

import collections
import datetime
import functools
import types
from typing import Any, NamedTuple

import pytest
import torch

import braze


class _Dict(dict[str, int]): ...


class _List(list[int]): ...


class _Tuple(tuple[int, ...]): ...


class _Set(set[int]): ...


class _Float(float): ...


class _Text(str): ...


class _Error(Exception): ...


class _Default(collections.defaultdict[str, int]): ...


class _Ordered(collections.OrderedDict[str, int]): ...


class _Queue(collections.deque[int]): ...


class _Date(datetime.date): ...


class _Slotted(dict[str, int]):
    __slots__ = ("number", "twice")


class _Computed(dict[str, int]):
    @property
    def total(self) -> int:
        return self.number + 1  # type: ignore[attr-defined, no-any-return]

    def __getattr__(self, name: str) -> int:
        if name.startswith("__") or name == "number":
            raise AttributeError(name)
        return len(name)


def program(x: torch.Tensor, owner: Any) -> Any:
    owner.number = getattr(owner, "number", 0) + 1
    owner.twice = owner.number * 2
    y = x * owner.number + owner.twice
    owner.number += 1
    total = getattr(owner, "total", None)
    return y + owner.number, hasattr(owner, "missing"), total, getattr(owner, "other", 7)


MAKERS = [
    *(_Dict, _List, _Tuple, _Set, _Float, _Text, _Error, _Default, _Ordered, _Queue, _Slotted),
    *(_Computed, types.SimpleNamespace),
    functools.partial(functools.partial, len),
    functools.partial(_Date, 2020, 1, 1),
]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: getattr(make, "__name__", None))
def test_what_was_written_is_read(make: Any) -> None:
    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    here, there = make(), make()
    for _ in range(3):
        found, expected = compiled(torch.ones(2), here), program(torch.ones(2), there)
        assert torch.equal(found[0], expected[0])
        assert found[1:] == expected[1:]
        assert (here.number, here.twice) == (there.number, there.twice)


@pytest.mark.parametrize("make", [_Dict, _Error, _Computed, types.SimpleNamespace])
def test_of_an_object_made_in_the_frame(make: Any) -> None:
    def made(x: torch.Tensor) -> Any:
        return program(x, make())

    compiled = braze.compile(made, backend="aot_eager", fullgraph=True)
    found, expected = compiled(torch.ones(2)), made(torch.ones(2))
    assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]


class _Items(dict[str, Any]):
    """Attributes are items, as in many configurations."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__  # type: ignore[assignment]
    __delattr__ = dict.__delitem__  # type: ignore[assignment]


class _Apart(dict[str, Any]):
    """Has items, and attributes of the same names."""


class _Lower(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return dict.__getitem__(self, key.lower())

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key.lower(), value)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key.lower())

    def __contains__(self, key: object) -> bool:
        return super().__contains__(str(key).lower())


class _Pair(NamedTuple):
    first: int
    second: int


class _Point(_Pair):
    @property
    def total(self) -> int:
        return self.first + self.second


def _items(x: torch.Tensor, items: Any) -> Any:
    items.a += 1
    items["b"] = items.a
    items.c = 3
    del items.c
    return x * items.b + items["a"], sorted(items), hasattr(items, "a")


def _apart(x: torch.Tensor, items: Any) -> Any:
    items.a = getattr(items, "a", 5) + items["a"]
    items["a"] += 1
    return x * items.a + items["a"]


def _lower(x: torch.Tensor, items: Any) -> Any:
    items["A"] += 1
    items["B"] = items["A"]
    del items["B"]
    return x * items["a"], "B" in items, "A" in items


def _tuples(x: torch.Tensor, points: Any) -> Any:
    points[0] = points[0]._replace(first=points[0].first + 1)
    return x * points[0].total + points[0].first, points[0]


def _errors(x: torch.Tensor, error: Any) -> Any:
    error.args = (len(error.args), 2)
    error.__cause__ = KeyError("c")
    return x + error.args[0], error.args, error.__suppress_context__


@pytest.mark.parametrize(
    ("program", "make"),
    [
        (_items, lambda: _Items(a=1)),
        (_apart, lambda: _Apart(a=1)),
        (_lower, lambda: _Lower(a=1)),
        (_tuples, lambda: [_Point(1, 2)]),
        (_errors, lambda: ValueError("a")),
    ],
    ids=lambda value: value.__name__.strip("_<>"),
)
def test_ways_to_keep_state(program: Any, make: Any) -> None:
    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    here, there = make(), make()
    for _ in range(4):
        assert str(compiled(torch.ones(2), here)) == str(program(torch.ones(2), there))
        assert repr(here) == repr(there)
        assert vars(here) == vars(there) if hasattr(here, "__dict__") else True


class _Lazy:
    @functools.lru_cache  # noqa: B019
    def twice(self, number: int) -> int:
        return 2 * number


@pytest.mark.parametrize("cls", [_Point, collections.namedtuple("_Fields", "first second")])
def test_a_field_that_is_only_passed_on(cls: Any) -> None:
    def program(x: torch.Tensor, point: Any) -> Any:
        return x + 1, point.second

    compiled = braze.compile(program, backend="eager")
    assert [compiled(torch.ones(2), cls(1, text))[1] for text in "abca"] == [*"abca"]


def test_a_cached_method_is_bound() -> None:
    def program(x: torch.Tensor, lazy: _Lazy) -> Any:
        method = lazy.twice
        return x + 1, method

    compiled = braze.compile(program, backend="eager")
    for lazy in (_Lazy(), _Lazy()):
        method = compiled(torch.ones(2), lazy)[1]
        assert method.__self__ is lazy and method(3) == 6
