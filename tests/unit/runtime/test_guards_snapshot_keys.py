"""Dicts in snapshots whose keys are no strings: dispatch tables, the environment."""

from __future__ import annotations

import os
import weakref
from typing import Any

import pytest
import torch

from braze.interop.backends import Backend, Level
from braze.options import config
from braze.runtime.guards.native_extension import LOADER
from braze.targets import make_dispatcher
from braze.trace import Journal

pytestmark = pytest.mark.skipif(LOADER.wait() is None, reason="the extension cannot be built")
_X = torch.arange(3.0)
_CALLS = 12


class Meta(type):
    """Its classes compare as it says."""

    def __eq__(cls, other: object) -> bool:
        return cls is other

    __hash__ = type.__hash__


class First:
    scale = 2.0


class Second(metaclass=Meta):
    pass


def _times(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def _plus(x: torch.Tensor) -> torch.Tensor:
    return x + 3


TABLE: dict[Any, Any] = {First: _times, int: _plus, b"bytes": 2.0, None: 1.0, _plus: 5.0}
ODD_TABLE: dict[Any, Any] = {First: _times, Second: _plus}
SHIFTS: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary({First: 4.0})


def by_class(x: torch.Tensor) -> torch.Tensor:
    if float in TABLE:
        x = x - 1
    return TABLE[First](x) * TABLE[b"bytes"] + TABLE[None] + TABLE[_plus]


def by_environment(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if os.environ.get("BRAZE_TEST_SHIFT", "0") == "1" else x + 1


def by_odd_class(x: torch.Tensor) -> torch.Tensor:
    return ODD_TABLE[First](x)


def by_weak_key(x: torch.Tensor) -> torch.Tensor:
    return x + SHIFTS[First]


def _compiled(function: Any) -> tuple[Any, Any]:
    dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
    compiled: Any = dispatcher.compiled(function)
    for _ in range(_CALLS):
        assert torch.equal(compiled(_X), function(_X))
    return compiled, dispatcher.caches()[0].entries[0].memory


@pytest.mark.parametrize("function", [by_class, by_environment])
def test_they_are_proven(function: Any) -> None:
    _, memory = _compiled(function)
    (taken,) = memory._snapshots.values()
    assert taken.snapshot.proven >= _CALLS - 3


@pytest.mark.parametrize("key, value", [(First, _plus), (b"bytes", 7.0), (None, 8.0), (float, 1)])
def test_their_changes_are_noticed(key: Any, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, _ = _compiled(by_class)
    monkeypatch.setitem(TABLE, key, value)
    for _ in range(3):
        assert torch.equal(compiled(_X), by_class(_X))
    monkeypatch.undo()
    assert torch.equal(compiled(_X), by_class(_X))


def test_the_environment_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, _ = _compiled(by_environment)
    monkeypatch.setenv("BRAZE_TEST_SHIFT", "1")
    assert torch.equal(compiled(_X), _X * 2)
    monkeypatch.delenv("BRAZE_TEST_SHIFT")
    assert torch.equal(compiled(_X), _X + 1)


@pytest.mark.parametrize("function", [by_odd_class, by_weak_key])
def test_of_other_keys_python_is_asked(function: Any) -> None:
    """And the rest of the guards are the snapshot's."""
    compiled, memory = _compiled(function)
    assert all(taken.snapshot.proven for taken in memory._snapshots.values())
    assert memory._snapshots or memory._failures == 0
    ODD_TABLE[First], SHIFTS[First] = _plus, 9.0
    assert torch.equal(compiled(_X), function(_X))
    ODD_TABLE[First], SHIFTS[First] = _times, 4.0
