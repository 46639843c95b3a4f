"""Questions to Python objects whose first answer served for good."""

from __future__ import annotations

import collections
import functools
from typing import Any

import pytest
import torch
from torch import nn

import braze


def _compiled(function: Any) -> Any:
    return braze.compile(function, backend="eager")


class _WithCache(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + self.cache if hasattr(self, "cache") else x * 2


@pytest.mark.parametrize("kind", ["buffer", "parameter"])
def test_module_gets_an_attribute_later(kind: str) -> None:
    module, x = _WithCache(), torch.ones(2)
    compiled = _compiled(module)
    compiled(x), compiled(x)
    if kind == "buffer":
        module.register_buffer("cache", torch.full((2,), 100.0))
    else:
        module.cache = nn.Parameter(torch.full((2,), 100.0))
    assert compiled(x).tolist() == [102.0, 102.0]


def test_cache_is_cleared_and_counted() -> None:
    state = {"v": 2}

    @functools.lru_cache
    def config() -> int:
        return state["v"]

    compiled = _compiled(lambda x: x * config())
    for _ in range(3):
        assert compiled(torch.ones(1)).item() == 2
    assert config.cache_info()[:2] == (2, 1)
    state["v"] = 9
    config.cache_clear()
    assert compiled(torch.ones(1)).item() == 9


def test_id_is_of_one_object() -> None:
    class Unit:
        def call(self, x: torch.Tensor, key: int) -> torch.Tensor:
            return x * 1.0 if id(self) == key else x * 0.0

    first, second = Unit(), Unit()
    compiled = _compiled(Unit.call)
    found = [compiled(o, torch.ones(1), id(first)).item() for o in (first, second, first)]
    assert found == [1.0, 0.0, 1.0]


def test_in_place_on_list_keeps_items() -> None:
    class Members(frozenset[int]):
        pass

    def grow(x: torch.Tensor, members: Any) -> Any:
        made = [0]
        made.extend(members)
        made += members
        return x + 1, made

    members = Members((1, 2))
    assert _compiled(grow)(torch.ones(1), members)[1] == grow(torch.ones(1), members)[1]


def test_defaultdict_subclass_keeps_factory() -> None:
    class Counts(collections.defaultdict[str, int]):
        pass

    def make(x: torch.Tensor) -> Any:
        return x + 1, Counts(int, {"a": 1})

    assert _compiled(make)(torch.ones(1))[1].default_factory is int


def test_set_is_read_past_iter() -> None:
    class Odd(set[int]):
        def __iter__(self) -> Any:
            return iter([99])

    def read(x: torch.Tensor, s: Any) -> Any:
        return x + 1, set(s), frozenset(s), {*s}, {0}.union(s), [*s]

    odd = Odd({1, 2})
    assert _compiled(read)(torch.ones(1), odd)[1:] == read(torch.ones(1), odd)[1:]
