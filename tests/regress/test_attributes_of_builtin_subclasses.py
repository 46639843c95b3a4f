"""Attributes of objects whose classes extend builtin ones are read as they were written."""

from __future__ import annotations

import collections
import datetime
import functools
import types
from typing import Any

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
