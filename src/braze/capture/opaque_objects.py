"""Objects from outside whose state is C's: NumPy's arrays and numbers, decimals, dates, generators
of random numbers. Only their type is guarded, so nothing may be computed from them while capturing:
real code that is to be called on one breaks the graph. Their attributes are guarded one by one.
"""

from __future__ import annotations

import collections
import functools
import types
import weakref
from typing import Any

from braze.capture.signals import BreakRequested

_OF_C = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.BuiltinFunctionType,
)
# Classes of C whose state is guarded where it is read, or that are called and never computed with.
_READ_THROUGH = (
    object,
    dict,
    list,
    tuple,
    set,
    frozenset,
    collections.deque,
    collections.OrderedDict,
    collections.defaultdict,
    BaseException,
    types.MappingProxyType,
    types.SimpleNamespace,
    types.MethodType,
    types.CellType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.ModuleType,
    functools.partial,
    weakref.ReferenceType,
    slice,
    type,
    super,
)
_MADE_BY_PYTHON = frozenset({"__dict__", "__weakref__"})
_HEAP_TYPE = 1 << 9


@functools.lru_cache(maxsize=4096)
def keeps_state_in_c(cls: type) -> bool:
    """Whether a class, or one that it extends, is written in C and not among those that capture
    reads through."""
    if issubclass(cls, BaseException):
        return False
    return any(base not in _READ_THROUGH and _is_of_c(base) for base in cls.__mro__)


def _is_of_c(cls: type) -> bool:
    if not cls.__flags__ & _HEAP_TYPE:
        return True
    slots = vars(cls).get("__slots__", ())
    own = {slots} if isinstance(slots, str) else set(slots)
    return any(
        isinstance(value, _OF_C[:3]) and getattr(value, "__objclass__", None) is cls
        for name, value in vars(cls).items()
        if name not in _MADE_BY_PYTHON and name not in own
    )


# Types and attributes are guarded where they are read; what is only stored or passed on is not
# read.
_KEEPERS = (
    super,
    getattr,
    super,
    isinstance,
    list,
    tuple,
    iter,
    next,
    zip,
    enumerate,
    reversed,
    object.__setattr__,
    type.__setattr__,
    list.append,
    list.insert,
    collections.deque.append,
    collections.deque.appendleft,
)


def only_keeps(function: Any) -> bool:
    """Whether real code reads nothing of its arguments but types and attributes."""
    if getattr(function, "__name__", None) in ("__get__", "__set__"):
        return True
    return any(function is keeper for keeper in _KEEPERS)


def check_opaque(interpreter: Any, function: Any, args: Any) -> None:
    """Break before real code computes with such an object. (Where there is none, long arguments are
    not walked: a program may append to one list a million times.)"""
    opaque = interpreter.world.opaque
    if not opaque:
        return
    found = next((value for value in _leaves(args, 4) if id(value) in opaque), None)
    if found is not None:
        name = getattr(function, "__name__", type(function).__name__)
        raise BreakRequested("opaque-object", f"{name}() of a {type(found).__qualname__}")


def check_proxies(world: Any, args: Any) -> None:
    """Break before real code gets a weak proxy, and runs methods of what that stands for."""
    if world.proxies and any(id(value) in world.proxies for value in _leaves(args, 2)):
        raise BreakRequested("unsupported-function", "a weak proxy, given to C code")


def _leaves(value: Any, depth: int) -> Any:
    if depth and isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item, depth - 1)
    elif depth and type(value) is dict:
        yield from _leaves(tuple(value.values()), depth - 1)
        yield from _leaves(tuple(value), depth - 1)
    else:
        yield value
