"""Binding gives the locals that CPython would, and CPython's own errors."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

from braze.runtime.dispatch.argument_binding import copy_defaults, make_binder


def plain(a, b):
    return a, b  # type: ignore[no-untyped-def]


def defaults(a, b=2, c=(3,)):
    return a, b, c  # type: ignore[no-untyped-def]


def keyword(a, *, b, c=3):
    return a, b, c  # type: ignore[no-untyped-def]


def rest(a, *args, b=1, **kwargs):
    return a, b, args, kwargs  # type: ignore[no-untyped-def]


def positional(a, b=2, /, c=3, *args):
    return a, b, c, args  # type: ignore[no-untyped-def]


def nothing():
    return ()  # type: ignore[no-untyped-def]


def both(a, /, **kw):
    return a, kw  # type: ignore[no-untyped-def]


def shadow(cell0, bind=1):
    return cell0, bind  # type: ignore[no-untyped-def]


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}), ((1,), {}), ((1, 2), {}), ((1, 2, 3), {}), ((1, 2, 3, 4), {}), ((1,), {"b": 5}),
    ((1,), {"a": 5}), ((), {"a": 1, "b": 2}), ((1,), {"b": 2, "c": 4}), ((1,), {"z": 2}),
    ((1, 2), {"c": 5}),
]  # fmt: skip


@pytest.mark.parametrize(
    "function", [plain, defaults, keyword, rest, positional, nothing, both, shadow]
)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_locals_are_those_of_the_function(function: Callable[..., Any], call: Any) -> None:
    args, kwargs = call
    binder = make_binder(function)  # type: ignore[arg-type]
    try:
        expected = function(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            binder(*args, **kwargs)
        return
    bound = binder(*args, **kwargs)
    assert tuple(bound.values()) == expected
    assert list(bound) == list(function.__code__.co_varnames[: len(bound)])


def test_defaults_are_the_same_objects_and_follow_the_function() -> None:
    binder = make_binder(defaults)  # type: ignore[arg-type]
    assert binder(1)["c"] is defaults.__defaults__[1]

    def changing(a=1, *, b=2):  # type: ignore[no-untyped-def]
        return a, b

    binder = make_binder(changing)  # type: ignore[arg-type]
    changing.__defaults__ = (5,)
    changing.__kwdefaults__["b"] = 6
    copy_defaults(changing, binder)  # type: ignore[arg-type]
    assert binder() == {"a": 5, "b": 6}


def test_free_variables_are_cells() -> None:
    cell0 = 3

    def function(_cell0: int) -> int:
        return _cell0 + cell0

    bound = make_binder(function)(1)  # type: ignore[arg-type]
    assert bound["_cell0"] == 1 and bound["cell0"] is function.__closure__[0]  # type: ignore[index]


def test_the_argument_of_a_comprehension() -> None:
    # Of a generator: list comprehensions have no code of their own since Python 3.12.
    code = compile("(x for x in y)", "f", "eval").co_consts[0]
    assert isinstance(code, types.CodeType)
    binder = make_binder(types.FunctionType(code, {}))
    assert binder(5) == {".0": 5}
    with pytest.raises(TypeError):
        binder()
