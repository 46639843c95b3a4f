"""`list[a, b]` of tensors, and what isinstance() asks of classes and tensors."""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def test_aliases_hold_the_tensors() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x + 1
        return list[y, x], dict[str, list[y]], tuple[*tuple[y, ...]], y  # type: ignore[valid-type]

    compiled = braze.compile(program, backend="eager")
    for size in (2, 3):
        x = torch.ones(size)
        first, second, third, y = compiled(x)
        assert type(first) is types.GenericAlias and first.__origin__ is list
        assert first.__args__[0] is y and first.__args__[1] is x
        assert second.__args__[0] is str and second.__args__[1].__args__[0] is y
        assert repr(third) == repr(program(x)[2])


class _Held:
    """What is no class, and can be called, as what type hints are made of must."""

    def __call__(self) -> None: ...

    def __or__(self, other: Any) -> Any:
        return (self, other)

    __ror__ = __or__


_HELD: list[tuple[Any, Any]] = [
    (typing.List[int], typing.Tuple[int, int]),  # noqa: UP006
    (list[int], dict[int, int]),
    (typing.TypeVar("T"), typing.TypeVar("T")),
    (_Held(), _Held()),
    (int, str),
]
# What C code makes of an object that it is given, and keeps.
_MAKERS: dict[str, Callable[[Any], Any]] = {
    "Union": lambda held: typing.Union[held, None],  # noqa: UP007
    "Optional": lambda held: typing.Optional[held],  # noqa: UP045
    "or": lambda held: held | None,
    "or, from the right": lambda held: None | held,
    "of three": lambda held: (int | held) | bytes,
    "alias": lambda held: list[held],
    "alias of a union": lambda held: list[held | None],
    "property": property,
    "class method": classmethod,
    "static method": staticmethod,
    "property of a new function": lambda held: property(lambda self: held),
    "cached property": functools.cached_property,
    "function with a cache": functools.lru_cache,
    "partial": functools.partial,
    "slice": slice,
    "type variable": lambda held: typing.TypeVar("S", bound=held),
}


@pytest.mark.parametrize("held", _HELD, ids=lambda pair: type(pair[0]).__name__)
@pytest.mark.parametrize("maker", _MAKERS)
def test_what_is_made_holds_what_this_call_gave(maker: str, held: tuple[Any, Any]) -> None:
    """Behind a break, as a result, and kept by an object: never what the first call gave."""
    make = _MAKERS[maker]

    def across(x: torch.Tensor, given: Any, kept: list[Any]) -> Any:
        made = make(given)
        braze.graph_break()
        return x + 1, made

    def out(x: torch.Tensor, given: Any, kept: list[Any]) -> Any:
        kept.append(make(given))
        return x + 1, make(given)

    try:
        make(held[0])
    except TypeError:
        return
    for program in (across, out):
        compiled = braze.compile(program, backend="eager")
        for given in (*held, *held):
            kept: list[Any] = []
            found, expected = compiled(torch.ones(2), given, kept)[1], make(given)
            for one in (found, *kept):
                assert type(one) is type(expected)
                assert _parts(one, given) == _parts(expected, given)


def _parts(made: Any, given: Any) -> list[tuple[bool, str]]:
    """(whether it is the object that was given, its text) of all that a made object holds."""
    names = "__args__ __bound__ __func__ __wrapped__ fget func stop".split()
    found = [getattr(made, name, None) for name in names]
    if isinstance(found[4], types.FunctionType):
        found[4] = found[4](None)
    flat = [*found, *(found[0] if isinstance(found[0], tuple) else ())]
    inner = [a for one in flat for a in (getattr(one, "__args__", None) or ())]
    return [(part is given, str(part)) for part in (*flat, *inner)]


class Never(type):
    def __instancecheck__(cls, value: object) -> bool:
        return False


class NeverOfEnum(enum.EnumMeta):
    def __instancecheck__(cls, value: object) -> bool:
        return False


class Plain(metaclass=Never):
    pass


class Derived(Plain):
    pass


class Member(enum.Enum, metaclass=NeverOfEnum):
    A = 1


@pytest.mark.parametrize("value", [Plain(), Derived(), Member.A, 3])
def test_exact_classes_are_instances(value: Any) -> None:
    def program(x: torch.Tensor, value: Any) -> Any:
        return x + 1, [isinstance(value, each) for each in (Plain, Derived, Member, (int, Plain))]

    assert braze.compile(program)(torch.ones(1), value)[1] == program(torch.ones(1), value)[1]


class Other(torch.Tensor):
    pass


@pytest.mark.parametrize("cls", [torch.Tensor, Other, torch.nn.Parameter])
@pytest.mark.parametrize("kind", [torch.nn.Parameter, torch.nn.Buffer])
def test_marks_of_parameters_are_noticed(cls: Any, kind: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, isinstance(x, kind)

    mark = "_is_param" if kind is torch.nn.Parameter else "_is_buffer"
    compiled = braze.compile(program, backend="eager")
    value = torch.ones(2).as_subclass(cls)
    for change in (None, True, False, None, True):
        vars(value).pop(mark, None)
        if change is not None:
            setattr(value, mark, change)
        assert compiled(value)[1] is program(value)[1]
    setattr(Other, mark, True)
    try:
        del value.__dict__[mark]
        assert compiled(value)[1] is program(value)[1]
    finally:
        delattr(Other, mark)
