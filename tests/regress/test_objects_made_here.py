"""Objects that a frame makes and hands out: their identities, hidden state, and who holds them."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


class _Plain:
    """Nothing special."""


class _Proxy:
    """Answers every question by what it stands for."""

    def __init__(self, target: object) -> None:
        self.__target = target

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_Proxy__"):
            return object.__getattribute__(self, name)
        return getattr(self.__target, name)


class _Label(str):
    """A string with attributes."""

    size: Any


class _Late(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise ZeroDivisionError


_Odd = _Late("_Odd", (), {})


@pytest.mark.parametrize("number", [id, hash])
def test_identities_of_what_is_passed_in(number: Callable[[object], int]) -> None:
    """They were those of the first call's object."""

    def program(x: torch.Tensor, one: object) -> tuple[torch.Tensor, int, dict[int, str]]:
        return x + 1, number(one), {number(x): "x"}

    compiled = braze.compile(program, backend="aot_eager")
    for one in (_Plain(), _Plain()):
        x = torch.ones(2)
        result = compiled(x, one)
        assert result[1:] == (number(one), {number(x): "x"})


def test_identities_of_what_is_made() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, bool, int]:
        items = [1]
        before, y = id(items), x + 1
        braze.graph_break()
        return y, before == id(items), id(y)

    compiled = braze.compile(program, backend="aot_eager")
    for _ in range(2):
        y, same, number = compiled(torch.ones(2))
        assert same
        assert number == id(y)


def test_the_state_behind_a_getattribute_of_its_own() -> None:
    """It was written to what the proxy stands for."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, bool, object, dict[str, Any]]:
        one = _Plain()
        proxy = _Proxy(one)
        return x + 1, isinstance(proxy, _Plain), proxy, vars(one)

    compiled = braze.compile(program, backend="aot_eager")
    for _ in range(2):
        _, is_plain, proxy, space = compiled(torch.ones(2))
        assert is_plain and isinstance(proxy, _Plain)
        assert not space


def test_an_iterator_that_a_tuple_holds_is_made_before_the_tuple() -> None:
    class Squares:
        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise IndexError
            return index**2

    def program(x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        squares = iter(Squares())
        pair, y = (squares, 1), x + 1
        braze.graph_break()
        next(squares)
        return y, list(pair[0])

    compiled = braze.compile(program, backend="aot_eager")
    for _ in range(2):
        assert compiled(torch.ones(2))[1] == [1, 4]


def test_strings_with_attributes_are_new_at_each_call() -> None:
    def program(x: torch.Tensor, size: int) -> tuple[torch.Tensor, str]:
        label = _Label("x")
        label.size = size
        return x + 1, label

    compiled = braze.compile(program, backend="aot_eager")
    labels = [compiled(torch.ones(2), size)[1] for size in (3, 4, 5, 5)]
    assert [label.size for label in labels] == [3, 4, 5, 5]
    assert [type(label.size) for label in labels] == [int] * 4
    assert len({id(label) for label in labels}) == 4


def test_odd_classes_and_numbers() -> None:
    """Each was a fault of the compiler's."""

    def program(x: torch.Tensor, power: int) -> tuple[torch.Tensor, int, bool]:
        return x + 1, power + 1, isinstance(_Odd(), int)

    compiled = braze.compile(program, backend="aot_eager", options={"suppress_errors": False})
    for power in (10**5000, 10**6000):
        x = torch.ones(2)
        assert compiled(x, power)[1:] == (power + 1, False)
        assert torch.equal(compiled(x, power)[0], x + 1)


def test_functions_keep_their_attributes() -> None:
    """Those given in the frame were lost."""

    def program(x: torch.Tensor, size: int) -> tuple[torch.Tensor, Callable[[], int]]:
        def inner() -> int:
            """Says nothing."""
            return size

        @functools.wraps(inner)
        def outer() -> int:
            return inner() + 1

        outer.size = [size]  # type: ignore[attr-defined]
        outer.result = x * size  # type: ignore[attr-defined]
        outer.itself = outer  # type: ignore[attr-defined]
        return x + 1, outer

    compiled = braze.compile(program, backend="aot_eager")
    x = torch.ones(2)
    for size in (3, 4):
        outer: Any = compiled(x, size)[1]
        assert (outer(), outer.__wrapped__(), outer.size) == (size + 1, size, [size])
        assert torch.equal(outer.result, x * size)
        assert outer.itself is outer
        assert outer.__doc__ == "Says nothing."


@pytest.mark.parametrize("way", ["exec", "constructor"])
def test_functions_with_globals_made_here(way: str) -> None:
    """Their globals were those of the first call."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, Any, dict[str, Any]]:
        space: dict[str, Any] = {"count": 0}
        text = "def more():\n    global count\n    count += 1\n    return count"
        if way == "exec":
            exec(text, space)
            more = space["more"]
        else:
            more = types.FunctionType(_count_more.__code__, space)
        more()
        return x + 1, more, space

    compiled = braze.compile(program, backend="aot_eager")
    for _ in range(2):
        _, more, space = compiled(torch.ones(2))
        assert space["count"] == 1
        assert more() == space["count"] == 2


def _count_more() -> int:
    global count
    count += 1  # type: ignore[name-defined]
    return count  # type: ignore[name-defined]


def test_classes_made_behind_a_break_are_of_the_callers_module() -> None:
    """`namedtuple` looks at the frame that calls it: that was one of ours."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        y = x + 1
        braze.graph_break()
        pair = collections.namedtuple("pair", "first second")
        braze.graph_break()
        return y, pair

    compiled = braze.compile(program, backend="aot_eager")
    for _ in range(2):
        assert compiled(torch.ones(2))[1].__module__ == __name__
