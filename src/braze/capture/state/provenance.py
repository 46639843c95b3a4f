"""What is told of a value by where it comes from: whether another function makes it, its name."""

from __future__ import annotations

import types
from typing import Any

from braze.compat.torch.functorch import place_of_transformed
from braze.ir.captured.source import (
    CellSource,
    ClosureSource,
    ItemSource,
    LocalSource,
    PeekSource,
    ReferentSource,
    Source,
    StackSource,
)
from braze.marks import MARKS


def is_made_often(function: types.FunctionType, source: Source) -> bool:
    """Whether a function that is passed in was made by another, which may make it anew, or is found
    through a weak reference: the guard of its identity would keep it alive."""
    if type(source) is ReferentSource:
        return MARKS.of(function) is None
    name = function.__code__.co_qualname
    if "<locals>" not in name and not name.endswith("<lambda>"):
        return False
    module = function.__globals__.get("__name__") or ""
    is_library = module.partition(".")[0] in ("torch", "braze")
    if is_library and place_of_transformed(function.__code__) is None:
        return False
    if MARKS.of(function) is not None:
        return False
    while isinstance(source, ItemSource | ClosureSource | PeekSource):
        source = source.base
    return isinstance(source, LocalSource | StackSource | CellSource)


def module_of_class(cls: type) -> object:
    """`cls.__module__` where its own class does not answer in its place."""
    return type.__dict__["__module__"].__get__(cls)


def _name_of_class(cls: type) -> str:
    module = module_of_class(cls)
    name: str = type.__dict__["__qualname__"].__get__(cls)
    return f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name


def name_of(value: Any, source: Source | None) -> str:
    """What messages call a value that is guarded by identity."""
    if issubclass(type(value), types.ModuleType):  # its `__getattr__` may make up any attribute
        return str(vars(value).get("__name__", "a module"))
    if issubclass(type(value), type):  # its class may have a `__module__` of its own
        return _name_of_class(value)
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(name, str):
        return f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name
    return str(source) if source is not None else repr(value)
