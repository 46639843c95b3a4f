"""Parts of Python's standard library that have no public name."""

from __future__ import annotations

import builtins
import collections
import functools
import operator
import random
import sys
import threading
import types
import typing
from collections.abc import Callable
from typing import Any, final

from braze.compat import private_names as private

# What tells C code that the list of filters is another one.
FILTERS_MUTATED: Callable[[], None] = private.filters_mutated
# What Python 3.14 calls where it holds the lock of the filters, and what takes and frees that.
FILTERS_MUTATED_UNDER_LOCK: Callable[[], None] = private.filters_changed_under_lock
FILTERS_LOCK: tuple[Callable[[], None], ...] = (
    private.take_filters_lock,
    private.free_filters_lock,
)

# What an abstract class has registered and cached: weak references, first the registered.
STATE_OF_ABSTRACT: Callable[[type], tuple[Any, ...]] = private.state_of_abstract

# `random.Random` as C code has it: `random()`, `seed()`, `getrandbits()`.
RANDOM_CORE: Any = random.Random.__mro__[1]


@functools.singledispatch
def _generic(value: object) -> None: ...


# The inner function that finds the implementation for a class.
DISPATCH_CODE: types.CodeType = _generic.dispatch.__code__


def registry_of(dispatch: types.FunctionType) -> dict[type, object]:
    """What `functools.singledispatch` registered: class -> implementation."""
    index = DISPATCH_CODE.co_freevars.index("registry")
    registry: dict[type, Any] = (dispatch.__closure__ or ())[index].cell_contents
    return registry


_UNION: Any = typing.Union
_IS_ONE_CLASS: bool = _UNION is types.UnionType


def union_of(arguments: tuple[object, ...]) -> object:
    """The union with these `__args__`. From Python 3.14 on `typing`'s is the same class, and holds
    objects of any class, which may have an `__or__` of their own."""
    if _IS_ONE_CLASS:
        return _UNION[arguments]
    return functools.reduce(operator.or_, arguments)


# Fields of objects of C classes that tell objects apart which hold other ones.
_PARTS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    functools.cached_property: ("func",),
    type(functools.lru_cache(len)): ("__wrapped__",),
}


def parts_of(value: object, cls: type) -> list[object]:
    """The objects that a descriptor, or a function with a cache, was made of. cls: its class."""
    return [getattr(value, name, None) for name in _PARTS.get(cls, ())]


_BUILTIN_CLASSES = [cls for cls in vars(builtins).values() if isinstance(cls, type)]
# What C code looks for in the class of an object that it is given: the slots of classes, which the
# builtin ones show, and what is looked for by name.
SPECIAL_METHODS: frozenset[str] = frozenset(
    {
        name
        for cls in (*_BUILTIN_CLASSES, types.CoroutineType, types.AsyncGeneratorType)
        for name, value in vars(cls).items()
        if isinstance(value, types.WrapperDescriptorType)
    }
    | {"__matmul__", "__imatmul__", "__rmatmul__", "__imul__", "__bytes__", "__complex__"}
    | {"__contains__", "__length_hint__", "__missing__", "__reversed__", "__format__", "__dir__"}
    | {"__round__", "__trunc__", "__floor__", "__ceil__", "__fspath__", "__sizeof__", "__prepare__"}
    | {"__instancecheck__", "__subclasscheck__", "__subclasshook__", "__class_getitem__"}
    | {"__enter__", "__exit__", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__"}
    | {"__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__match_args__"}
    | {"__array__", "__array_interface__", "__array_struct__", "__torch_function__", "__dict__"}
    | {"__index__", "keys", "items", "values", "send", "throw", "close", "read", "write"}
)


class _Probed(collections.defaultdict[str, int]):
    def __setitem__(self, key: str, value: int) -> None:
        """Keep nothing."""


def _assigns_defaults() -> bool:
    probed = _Probed(int)
    probed["a"]
    return not len(probed)


# Whether a defaultdict keeps what its factory made by `__setitem__` of its class: later releases of
# 3.13 and 3.14 do not.
ASSIGNS_DEFAULTS = _assigns_defaults()


def name_of_slotted(cls: type) -> str:
    """What an error names a class whose slot is empty: from Python 3.13 on with its module."""
    if sys.version_info < (3, 13):
        return cls.__name__
    if cls.__module__ in ("builtins", "__main__"):
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def no_iterator(cls: type, given: type) -> TypeError:
    """The error where a class's `__iter__` gives an object of a class without `__next__`."""
    if sys.version_info < (3, 15):
        return TypeError(f"iter() returned non-iterator of type {given.__name__!r}")
    method = f"{name_of_slotted(cls)}.__iter__()"
    return TypeError(f"{method} must return an iterator, not {name_of_slotted(given)}")


def no_bool(cls: type, given: type) -> TypeError:
    """The error where a class's `__bool__` gives an object of another class."""
    if sys.version_info < (3, 15):
        return TypeError(f"__bool__ should return bool, returned {given.__name__}")
    method = f"{name_of_slotted(cls)}.__bool__()"
    return TypeError(f"{method} must return a bool, not {name_of_slotted(given)}")


def name_of_manager(value: object, cls: type) -> str:
    """What an error names an object of `cls` that is no context manager."""
    if sys.version_info >= (3, 14):
        return name_of_slotted(cls)
    return name_in_errors(value) if type(value) is cls else cls.__name__


def name_in_errors(value: object) -> str:
    """What an AttributeError names the class of an object: those of C code with their module."""
    try:
        object.__getattribute__(value, "")
    except AttributeError as error:
        return str(error).split("'")[1]
    return type(value).__name__


@final
class SameThread:
    """A question: is this the thread that a frame was captured in?"""

    __slots__ = ("_number",)

    def __init__(self) -> None:
        self._number = threading.get_ident()

    def holds(self) -> bool:
        """Whether it is."""
        return threading.get_ident() == self._number

    def __str__(self) -> str:
        return "which thread this is"
