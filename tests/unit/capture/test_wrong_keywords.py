"""Calls with a keyword that the callable does not take: eager's exception, for every builtin."""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

# Those that would end the process, wait for input, or open something.
_LEFT_OUT = {"breakpoint", "copyright", "credits", "exit", "help", "input", "license", "open"}
_LEFT_OUT |= {"quit", "print", "_"}
# Arguments that some builtin accepts, one of them tried after another.
_ARGUMENTS: tuple[tuple[Any, ...], ...] = ((), (3,), ([1, 2],), (3, 2), (int, object), ("a", "b"))

_CALLABLES: dict[str, Any] = {
    name: value
    for name, value in vars(builtins).items()
    if callable(value) and name not in _LEFT_OUT and not name.startswith("__")
}
for _cls in (dict, list, set, str, tuple):
    for _name in dir(_cls):
        if not _name.startswith("__"):
            _CALLABLES[f"{_cls.__name__}.{_name}"] = getattr(_cls(), _name)
for _name in ("attrgetter", "itemgetter", "methodcaller", "add", "contains", "getitem", "index"):
    _CALLABLES[f"operator.{_name}"] = getattr(operator, _name)
_CALLABLES["functools.reduce"] = functools.reduce


def outcome(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        result = call()
    except Exception as error:
        return type(error).__name__, ""
    return "", repr(type(result))


@pytest.mark.parametrize("name", sorted(_CALLABLES))
def test_unknown_keyword_raises_as_eager(name: str) -> None:
    function = _CALLABLES[name]
    x = torch.ones(2)
    for arguments in _ARGUMENTS:

        def program(x: torch.Tensor, arguments: Any = arguments) -> Any:
            x = x + 1
            return function(*arguments, invalid=1)

        expected = outcome(lambda: program(x))
        assert outcome(lambda: braze.compile(program)(x)) == expected, (name, arguments)
