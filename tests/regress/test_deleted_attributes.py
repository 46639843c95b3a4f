"""`del x.name` of what a builtin object, or a slot, keeps outside of a dict."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


class Slots:
    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = 1


def function() -> Any:
    def made(x: int = 3, *, k: int = 1) -> int:
        return x + k

    return made


OWNERS: dict[str, Callable[[], Any]] = {
    "__defaults__": function,
    "__kwdefaults__": function,
    "__annotations__": function,
    "__code__": function,
    "__cause__": lambda: ValueError(1),
    "args": lambda: ValueError(1),
    "value": lambda: StopIteration(3),
    "filename": lambda: OSError(1, "a", "f"),
    "default_factory": lambda: collections.defaultdict(list),
    "kept": Slots,
}


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", OWNERS)
def test_what_is_left(name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def delete(o):\n    del o.{name}\ndef read(o):\n    return o.{name}", space)
    delete, read = space["delete"], space["read"]

    def run(x: torch.Tensor, owner: Any) -> Any:
        return x + 1, outcome(delete, owner), outcome(read, owner)

    owner, other = OWNERS[name](), OWNERS[name]()
    expected, found = run(torch.ones(1), owner), braze.compile(run)(torch.ones(1), other)
    assert found[1] == expected[1]
    for mine, right in ((found[2], expected[2]), (outcome(read, other), outcome(read, owner))):
        assert mine == right or type(mine) is type(right) is type(run.__code__)
