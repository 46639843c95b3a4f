"""What C code may run, or read, of an object that it is given: the special methods of its class."""

from __future__ import annotations

import collections
import decimal
import enum
import functools
import gc
import itertools
import operator
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.guard_context import (
    CONSTANTS,
    IDENTITIES,
    TENSORS,
    is_identity_class,
    raw_lookup,
)
from braze.capture.state.provenance import module_of_class
from braze.class_facts import fact_of_class
from braze.compat.python.packages import is_of_package
from braze.compat.python.stdlib import SPECIAL_METHODS
from braze.compat.torch.dynamo_interop import is_callback_of_compiler
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.state.guard_context import GuardContext

_FIXED = (type, enum.Enum, types.ModuleType)
_OF_PROGRAM = (enum.Enum, types.ModuleType)
# What C code calls only where a class is made or called, which capture does itself.
_NOT_FROM_C = frozenset(
    "__new__ __init__ __call__ __init_subclass__ __set_name__ __class_getitem__ __prepare__ "
    "__getattribute__ __mro_entries__".split()
)
_OWN = ("braze", "torch")


def runs_python(cls: Any) -> bool:
    """Whether C code may run Python code of instances, which are no containers."""
    if issubclass(cls, _OF_PROGRAM):
        return any(map(_is_of_program, special_functions(cls)))
    return _may_run_python(cls)


def is_hashed_in_python(cls: Any) -> bool:
    """Whether a container that looks for an instance may run Python code of its class."""
    if issubclass(cls, _OF_PROGRAM):
        methods = [raw_lookup(cls, name) for name in ("__hash__", "__eq__")]
        return any(type(m) is types.FunctionType and _is_of_program(m) for m in methods)
    return _may_run_python(cls)


def _is_of_program(method: types.FunctionType) -> bool:
    """Whether a method is none that every enumeration has."""
    return method.__globals__.get("__name__") != "enum"


def _is_asked_by_c(method: types.FunctionType) -> bool:
    """Whether C code that gets a class runs this method of its metaclass, which is none that all
    enumerations and abstract classes have."""
    module = method.__globals__.get("__name__")
    return module not in _OF_CLASSES and method.__name__ not in _OF_CHECKS


_OF_CLASSES = frozenset({"enum", "abc", "_py_abc", "typing"})
# What capture interprets where it is asked for.
_OF_CHECKS = frozenset({"__instancecheck__", "__subclasscheck__", "__setattr__", "__getattr__"})


@fact_of_class
def _may_run_python(cls: Any) -> bool:
    if cls in CONSTANTS or cls in TENSORS:
        return False
    if is_identity_class(cls) and (cls in IDENTITIES or issubclass(cls, _FIXED)):
        return issubclass(cls, type) and any(map(_is_asked_by_c, special_functions(cls)))
    return module_of_class(cls) != "builtins"


def special_functions(cls: type) -> list[types.FunctionType]:
    """The Python functions behind the special methods of a class and its bases."""
    found: list[types.FunctionType] = []
    for base in cls.__mro__:
        if base.__flags__ & _HEAP_TYPE and not _is_own(base):
            found += own_special_functions(base)
    return found


def _is_own(cls: type) -> bool:
    return is_of_package(module_of_class(cls), *_OWN)


def own_special_functions(cls: type) -> list[types.FunctionType]:
    """Those that the class itself defines."""
    found: list[types.FunctionType] = []
    for name, value in type.__dict__["__dict__"].__get__(cls).items():
        if (
            type(name) is str
            and name.startswith("__")
            and name.endswith("__")
            and name not in _NOT_FROM_C
        ):
            function = value.__func__ if type(value) is classmethod else value
            if type(value) is property:  # `__bases__` and `__class__` of what passes for a class
                function = value.fget
            if type(function) is types.FunctionType:
                found.append(function)
    return found


def guard_special_methods(guard_context: GuardContext, cls: type) -> None:
    """A class keeps the methods that C code looks for in an instance, and gets no others."""
    if cls in guard_context.with_methods or not cls.__flags__ & _HEAP_TYPE:
        return
    guard_context.with_methods.add(cls)
    if id(cls) in guard_context.made_classes:
        for base in type.__dict__["__bases__"].__get__(cls):
            guard_special_methods(guard_context, base)
        return
    found = dict.fromkeys(SPECIAL_METHODS, ABSENT)
    for base in reversed(type.__dict__["__mro__"].__get__(cls)):
        space = type.__dict__["__dict__"].__get__(base)
        found.update({name: space[name] for name in SPECIAL_METHODS & space.keys()})
    if guard_context.by_code:
        guard_context.guard_identities(found.values())
    guard_context.lookups.setdefault(cls, {}).update(found)


_HEAP_TYPE = 1 << 9


def has_contents(cls: type) -> bool:
    """Whether a value has contents that C code reads or changes."""
    return issubclass(cls, _HOLDING)


_HOLDING = (
    *(list, dict, set, frozenset, collections.deque, bytearray),
    *(types.SimpleNamespace, types.MappingProxyType, functools.partial),
)


def check_context(classes: set[type]) -> None:
    """Break where C code computes by the thread's decimal context."""
    for cls in classes:
        if issubclass(cls, decimal.Decimal):
            raise BreakRequested("unseen-callable", "decimals, which the context rounds")


def compares_its_own_way(cls: type) -> bool:
    """Whether a class of strings is compared with names, of parameters or in a dict, by Python
    code."""
    return any(
        name in type.__dict__["__dict__"].__get__(base)
        for base in cls.__mro__[: cls.__mro__.index(str)]
        for name in ("__eq__", "__hash__")
    )


def check_given_up(values: Iterable[object]) -> None:
    """Break before values lose a place outside of the frame where the end of one is noticed, which
    eager may run there: nothing is written while a frame is captured. Of what builtin containers
    among the values hold, a number of items is looked at."""
    left = _MOST_NESTED
    nested: list[Any] = []
    for value in itertools.chain(values, _emptied(nested)):
        cls: Any = type(value)
        if cls in _CONTAINERS and left > 0:
            left -= len(value)
            nested += cls.values(value) if issubclass(cls, dict) else value
        if not cls.__flags__ & _HEAP_TYPE:
            continue
        if raw_lookup(cls, "__del__") is not ABSENT or has_callbacks(value):
            raise BreakRequested("finalizer", f"a {cls.__qualname__}")


_CONTAINERS = frozenset({tuple, list, dict, set, frozenset, collections.deque})
_MOST_NESTED = 256


def _emptied(values: list[object]) -> Iterator[Any]:
    """The items of a list that grows meanwhile."""
    while values:
        yield values.pop()


def has_callbacks(value: object) -> bool:
    """Whether a weak reference to an object calls the program when the object ends."""
    cls: Any = type(value)
    if cls.__weakrefoffset__ == 0 or not weakref.getweakrefcount(value):
        return False
    if issubclass(cls, LASTING):
        return False
    callbacks = [callback_of(reference) for reference in weakref.getweakrefs(value)]
    return any(call is not None and not is_callback_of_compiler(call) for call in callbacks)


# What is weakly referenced by registries and lives on.
LASTING = (type, types.FunctionType, types.ModuleType, torch.nn.Module)


def callback_of(reference: object) -> object:
    """What is called when the object of a weak reference or proxy ends, or None. A proxy hands all
    questions on to its object: only the garbage collector says what it holds."""
    if type(reference) in weakref.ProxyTypes:
        return next(iter(gc.get_referents(reference)), None)
    return _CALLBACK.__get__(reference)


_CALLBACK: Any = vars(weakref.ReferenceType)["__callback__"]


# C code that makes a text of what it is given.
MAKES_TEXT = frozenset(
    {repr, str, ascii, format, str.format, str.format_map, str.__mod__, operator.mod}
)


def check_text(guard_context: GuardContext, objects: list[object]) -> None:
    """Break where C code would show where an object lies, or what a builtin one holds."""
    for value in objects:
        shows = guard_context.lookup(type(value), "__repr__")
        if type(shows) is not types.FunctionType and not is_identity_class(type(value)):
            raise BreakRequested("unseen-python", f"the text of a {type(value).__qualname__}")
