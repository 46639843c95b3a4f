"""Strings of the program's own class as keywords, keys and names: Python compares them by the
class's own `__eq__`, which may raise or answer otherwise."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def _keywords(**keywords: Any) -> Any:
    return sorted(map(str, keywords.items()))


def _parameter(poison: Any = 1, **keywords: Any) -> Any:
    return poison, sorted(map(str, keywords.items()))


_PARTIAL = functools.partial(_keywords, poison="")
# What a program does with a name of its own class.
_USES: dict[str, Callable[[Any], Any]] = {
    "partial": lambda name: _PARTIAL(**{name: 1}),
    "keywords": lambda name: _keywords(**{name: 1}),
    "parameter": lambda name: _parameter(**{name: 1}),
    "dict_call": lambda name: sorted(map(str, dict(poison=1, **{name: 1}))),
    "partial_made": lambda name: functools.partial(_keywords, poison=1)(**{name: 1}),
    "partial_of_name": lambda name: functools.partial(_keywords, **{name: 1})(poison=2),
    "two_mappings": lambda name: _keywords(poison=1, **{name: 1}),
    "display": lambda name: {"poison": 2, name: 1},
    "union": lambda name: {"poison": 2} | {name: 1},
    "lookup": lambda name: {name: 1}["poison"],
    "get": lambda name: {name: 1}.get("other", 3),
    "update": lambda name: {"poison": 1}.update({name: 2}),
    "sets": lambda name: {name} & {"poison"},
    "pairs": lambda name: dict([(name, 1)], poison=2),
    "attribute": lambda name: getattr(torch, name, None),
    "in": lambda name: name in ["poison", "other"],
    "startswith": lambda name: name.startswith("poi"),
}


class _Refuses(str):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = str.__hash__


class _EqualsNothing(str):
    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


class _HashedOtherwise(str):
    __eq__ = str.__eq__

    def __hash__(self) -> int:
        return 7


class _Plain(str):
    pass


_CLASSES = (_Refuses, _EqualsNothing, _HashedOtherwise, _Plain)


def _outcome(function: Callable[[Any], Any]) -> str:
    try:
        value = function(torch.ones(2))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return repr(value)


@pytest.mark.parametrize("made_inside", (False, True))
@pytest.mark.parametrize("cls", _CLASSES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("use", _USES)
def test_names_are_compared_as_by_python(use: str, cls: type, made_inside: bool) -> None:
    action = _USES[use]

    def program(x: torch.Tensor) -> Any:
        if made_inside:
            name = type("Inside", (cls,), {})("poison")
        else:
            name = cls("poison")
        try:
            found = action(name)
        except RuntimeError as error:
            found = str(error)
        return found, x + 1

    expected = _outcome(program)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [_outcome(braze.compile(program)) for _ in range(2)]
    assert found == [expected] * 2
    assert not [w for w in caught if "stage 'capture' failed" in str(w.message)]
