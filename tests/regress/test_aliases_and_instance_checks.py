"""`list[a, b]` of tensors, and what isinstance() asks of classes and tensors."""

from __future__ import annotations

import enum
import types
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
