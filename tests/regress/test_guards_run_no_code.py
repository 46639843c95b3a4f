"""A guard that reads an attribute runs none of the program's code: the object may have lost it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


class _Descriptor:
    def __get__(self, owner: Any, cls: type) -> int:
        return owner.computed()  # type: ignore[no-any-return]


class _Logged:
    def __init__(self) -> None:
        self.count, self.log = 1, []  # type: ignore[var-annotated]

    def computed(self) -> int:
        self.log.append(self.count)
        return self.count * 10


def _cached() -> Any:
    class Cached(_Logged):
        @functools.cached_property
        def value(self) -> int:
            return self.computed()

    return Cached()


def _described() -> Any:
    return type("Described", (_Logged,), {"value": _Descriptor()})()


def _found() -> Any:
    return type("Found", (_Logged,), {"__getattr__": lambda self, name: self.computed()})()


def _looked_up() -> Any:
    def look(self: Any, name: str) -> Any:
        if name == "value" and name not in object.__getattribute__(self, "__dict__"):
            return self.computed()
        return object.__getattribute__(self, name)

    return type("LookedUp", (_Logged,), {"__getattribute__": look})()


def _cached_of_module() -> Any:
    class Block(torch.nn.Module, _Logged):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            _Logged.__init__(self)

        @functools.cached_property
        def value(self) -> int:
            return self.computed()

    return Block()


def _described_later() -> Any:
    return type("Plain", (_Logged,), {})()


def _calls(make: Callable[[], Any], wrap: Callable[[Any], Any]) -> list[Any]:
    owner = make()
    owner.value = 3

    def program(x: torch.Tensor) -> torch.Tensor:
        owner.count = owner.count + 1
        return x * owner.value

    function, x = wrap(program), torch.ones(1)
    seen = [function(x).item(), function(x).item()]
    if make is _described_later:
        type(owner).value = _Descriptor()
    del owner.value
    for _ in range(3):
        seen += [function(x).item(), owner.count, list(owner.log), "value" in owner.__dict__]
    owner.value = 5
    return [*seen, function(x).item(), list(owner.log)]


@pytest.mark.parametrize(
    "make",
    [_cached, _described, _found, _looked_up, _cached_of_module, _described_later],
    ids=lambda make: make.__name__.strip("_"),
)
def test_guard_runs_no_getter(make: Callable[[], Any]) -> None:
    assert _calls(make, braze.compile) == _calls(make, lambda program: program)
