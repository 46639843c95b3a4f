"""Data that nobody changes: a dataclass with slots whose fields are set once.

    @final
    @frozen
    class Point:
        x: int

As `dataclass(frozen=True, slots=True)`, but for its size: that writes a `__setattr__`, a
`__delattr__` and a `__repr__` for each class, 8 KiB of functions which do the same in all of them.
Here every class has these.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

_Class = TypeVar("_Class", bound=type)


@overload
def frozen(cls: _Class, /) -> _Class: ...


@overload
def frozen(*, eq: bool = True) -> Callable[[_Class], _Class]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: Any = None, /, *, eq: bool = True) -> Any:
    """eq: whether instances with equal fields are equal, and may be keys; else each is its own."""

    def make(cls: type) -> type:
        made: type = dataclasses.dataclass(frozen=True, slots=True, eq=eq, repr=False)(cls)
        methods = {"__setattr__": _refuse_setting, "__delattr__": _refuse_deleting}
        if not any("__repr__" in base.__dict__ for base in cls.__mro__[:-1]):
            methods["__repr__"] = _text
        for name, method in methods.items():
            setattr(made, name, method)
        return made

    return make if cls is None else make(cls)


# --- private ---------------------------------------------------------------------------------


def _refuse_setting(self: object, name: str, value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deleting(self: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


@reprlib.recursive_repr()
def _text(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"
