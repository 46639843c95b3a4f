"""Objects from outside whose state is C's: NumPy's arrays and numbers, decimals, dates, generators
of random numbers. Only their type is guarded, so nothing may be computed from them while capturing:
real code that is to be called on one breaks the graph. Their attributes are guarded one by one.
"""

from __future__ import annotations

import collections
import functools
import operator
import types
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

from braze.capture.frames.control_signals import BreakRequested
from braze.class_facts import fact_of_class
from braze.compat.python.iterator_state import base_items
from braze.frozen import frozen

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.capture.state.guard_context import GuardContext

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


@final
@frozen
class WeakProxy:
    """A weak proxy that the program made, at a step of the outermost loop."""

    proxy: Any
    target: weakref.ReferenceType[Any]
    made_at: int


@fact_of_class
def keeps_state_in_c(cls: type) -> bool:
    """Whether a class, or one that it extends, is written in C and not among those that capture
    reads through."""
    if issubclass(cls, BaseException):
        return False
    return any(base not in _READ_THROUGH and _is_of_c(base) for base in cls.__mro__)


@fact_of_class
def is_enumeration_of_c(cls: type) -> bool:
    """Whether instances are the members of an enumeration in C++ (`SDPBackend`): each one's number
    never changes, so that an identity says all of it."""
    return type(cls).__name__ == "pybind11_type" and isinstance(vars(cls).get("__entries"), dict)


def _is_of_c(cls: type) -> bool:
    if not cls.__flags__ & _HEAP_TYPE:
        return True
    slots = vars(cls).get("__slots__", ())
    own = {slots} if isinstance(slots, str) else set(slots)
    return any(
        issubclass(type(value), _OF_C[:3]) and getattr(value, "__objclass__", None) is cls
        for name, value in vars(cls).items()
        if name not in _MADE_BY_PYTHON and name not in own
    )


# Types and attributes are guarded where they are read; what is only stored or passed on is not
# read.
_KEEPERS = {
    id(function)
    for function in (
        super,
        getattr,
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
}


# What asks nothing of the items of a sequence, its first argument: of the others it looks at those
# that are no sequences themselves.
_ASKS_NO_ITEMS = {
    id(function)
    for function in (
        len,
        operator.getitem,
        operator.setitem,
        operator.delitem,
        operator.add,
        operator.iadd,
        list.__len__,
        list.__getitem__,
        list.__setitem__,
        list.__delitem__,
        list.__add__,
        list.__iadd__,
        list.extend,
        list.pop,
        list.clear,
        list.copy,
        list.reverse,
        tuple.__len__,
        tuple.__getitem__,
        tuple.__add__,
        collections.deque.__len__,
        collections.deque.__getitem__,
        collections.deque.pop,
        collections.deque.popleft,
    )
}
# What looks up its second argument in a dict, its first: nothing is asked of the dict's values.
_LOOKS_UP = {
    id(function)
    for function in (
        operator.contains,
        operator.getitem,
        operator.setitem,
        operator.delitem,
        dict.__contains__,
        dict.__getitem__,
        dict.__setitem__,
        dict.__delitem__,
        dict.get,
        dict.pop,
        dict.setdefault,
    )
}


def only_keeps(function: object) -> bool:
    """Whether real code reads nothing of its arguments but types and attributes."""
    if getattr(function, "__name__", None) in ("__get__", "__set__"):
        return True
    return id(function) in _KEEPERS


def asks_no_items(function: object, owner: object) -> bool:
    """Whether real code asks nothing of the items of a sequence, its first argument."""
    return id(function) in _ASKS_NO_ITEMS and issubclass(type(owner), _SEQUENCES)


def looks_up(function: object, owner: object) -> bool:
    """Whether real code looks up its second argument in a dict, its first, and reads no values."""
    return id(function) in _LOOKS_UP and issubclass(type(owner), dict)


def check_opaque(
    interpreter: Interpreter,
    function: object,
    args: tuple[object, ...],
    kwargs: object = types.MappingProxyType({}),
) -> None:
    """Break before real code computes with such an object. (What it asks nothing of is not walked:
    a program may append to one list a million times.)"""
    if interpreter.guard_context.opaque:
        _check(interpreter, function, _looked_at(interpreter, function, args, kwargs))


def check_opaque_key(interpreter: Interpreter, function: object, key: object) -> None:
    """The same for what looks up a key."""
    if interpreter.guard_context.opaque:
        _check(interpreter, function, _leaves(key, _DEPTH))


def _check(interpreter: Interpreter, function: object, values: Iterator[object]) -> None:
    opaque = interpreter.guard_context.opaque
    for value in values:
        if id(value) in opaque:
            name = getattr(function, "__name__", type(function).__name__)
            raise BreakRequested("opaque-object", f"{name}() of a {type(value).__qualname__}")


def check_proxies(guard_context: GuardContext, args: object) -> None:
    """Break before real code gets a weak proxy, and runs methods of what that stands for."""
    if guard_context.proxies and any(
        id(value) in guard_context.proxies for value in _leaves(args, 2)
    ):
        raise BreakRequested("unsupported-function", "a weak proxy, given to C code")


def _looked_at(
    interpreter: Interpreter, function: object, args: tuple[Any, ...], kwargs: object
) -> Iterator[object]:
    """What real code may read of its arguments: containers are walked."""
    if not kwargs and args:
        if asks_no_items(function, args[0]):
            yield from [value for value in args if not issubclass(type(value), _SEQUENCES)]
            return
        if looks_up(function, args[0]):
            yield from _new_keys(interpreter, args[0])
            yield from _leaves(args[1:2], _DEPTH)
            return
    yield from _leaves((args, kwargs), _DEPTH)


def _new_keys(interpreter: Interpreter, owner: dict[object, object]) -> Iterator[object]:
    """The keys of a dict, which a lookup may compare. Those of one that was walked before are not
    walked again: what puts a key into it looks at that key."""
    walked = (owner, len(interpreter.guard_context.opaque))
    before = interpreter.walked_keys.get(id(owner))
    if before is None or before[1] != walked[1]:
        yield from _leaves(tuple(dict.keys(owner)), _DEPTH)
        interpreter.walked_keys[id(owner)] = walked


_SEQUENCES = (list, tuple, collections.deque)
# No program nests keys and arguments so deeply; a list may hold itself.
_DEPTH = 8


def _leaves(value: object, depth: int) -> Iterator[object]:
    if depth and issubclass(type(value), (tuple, list)):
        for item in base_items(value):
            yield from _leaves(item, depth - 1)
    elif depth and type(value) is dict:
        yield from _leaves(tuple(value.values()), depth - 1)
        yield from _leaves(tuple(value), depth - 1)
    else:
        yield value
