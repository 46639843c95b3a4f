"""Methods of dict that change an OrderedDict past the order that it keeps: such break the graph."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

CHANGES: dict[str, Callable[[Any], Any]] = {
    "pop": lambda d: dict.pop(d, "a"),
    "delete": lambda d: dict.__delitem__(d, "a"),
    "set": lambda d: dict.__setitem__(d, "c", 3),
    "setdefault": lambda d: dict.setdefault(d, "c", 3),
    "update": lambda d: dict.update(d, c=3),
    "clear": dict.clear,
    "popitem": dict.popitem,
    "init": lambda d: dict.__init__(d, c=3),
    "or": lambda d: dict.__ior__(d, {"c": 3}),
}


def shown(value: Any) -> tuple[list[Any], Any]:
    """What both sides of an OrderedDict hold."""
    try:
        ordered: Any = list(OrderedDict.items(value))
    except KeyError as problem:
        ordered = str(problem)
    return sorted(dict.items(value)), ordered


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("made_here", [False, True])
def test_order_is_that_of_eager(name: str, made_here: bool) -> None:
    change = CHANGES[name]

    def program(x: torch.Tensor, given: Any) -> Any:
        pairs = OrderedDict(a=1, b=2) if made_here else given
        y = x + len(pairs)
        change(pairs)
        return y, pairs, "a" in pairs

    y, pairs, has_a = program(torch.ones(2), OrderedDict(a=1, b=2))
    compiled = braze.compile(program, backend="eager")
    for _ in range(2):
        got, found, found_a = compiled(torch.ones(2), OrderedDict(a=1, b=2))
        assert torch.equal(got, y)
        assert (shown(found), found_a) == (shown(pairs), has_a)


def test_broken_order_from_outside_breaks() -> None:
    broken: OrderedDict[str, int] = OrderedDict(a=1, b=2)
    dict.pop(broken, "a")

    def program(x: torch.Tensor, pairs: Any) -> Any:
        try:
            return x + len([*pairs.items()])
        except KeyError:
            return x - 1

    compiled = braze.compile(program, backend="eager")
    assert compiled(torch.ones(1), broken).tolist() == program(torch.ones(1), broken).tolist()
