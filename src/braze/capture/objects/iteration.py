"""Iteration: over containers from outside through their shadows, over objects by protocol."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.torch_calls import check_original, leaf_call
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.frames.generators import InlinedGenerator
from braze.capture.objects.mapping_proxies import entries_of
from braze.capture.state.guard_context import CONSTANTS, TENSORS
from braze.capture.state.side_effects import EXACT, SETS, check_lookups
from braze.capture.state.string_escape import handed_over
from braze.compat.python.stdlib import no_iterator
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

DICT_VIEWS = frozenset({type({}.keys()), type({}.values()), type({}.items())})


class ProtocolIterator:
    """An object whose `__next__` is Python code of the program, for native consumers."""

    def __init__(self, interpreter: Interpreter, iterator: object) -> None:
        self._interpreter = interpreter
        self.iterator = iterator

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        try:
            found = next_of(self._interpreter, self.iterator)
            return handed_over(self._interpreter.reader, found)
        except ProgramRaised as raised:
            problem = raised.exception
        raise problem


class FittedIterator:
    """An iterator whose items are made fit for C code, each when it is asked for."""

    def __init__(self, fit: Callable[[object], object], iterator: Iterator[object]) -> None:
        self._fit = fit
        self.iterator = iterator

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        return self._fit(next(self.iterator))


class GetitemIterator:
    """Iteration by `__getitem__` with 0, 1, 2 ... until IndexError; backwards from the last.

    kind: `iter` or `reversed`; index: of the next item, -1 where a backward iteration is over.
    """

    def __init__(self, interpreter: Interpreter, kind: object, owner: Any, method: object) -> None:
        self._interpreter = interpreter
        self.kind = kind
        self.owner = owner
        self._method = method
        self.index = 0 if kind is iter else interpreter.length(owner) - 1

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        index = self.index
        if index < 0:
            raise StopIteration
        self.index += 1 if self.kind is iter else -1
        try:
            found = self._interpreter.call(self._method, self.owner, index)
            return handed_over(self._interpreter.reader, found)
        except ProgramRaised as raised:
            problem = raised.exception
        if isinstance(problem, (IndexError, StopIteration)):
            self.index = -1
            problem = StopIteration()
        raise problem


def iterator_of(interpreter: Interpreter, value: Any) -> Any:
    """`iter(value)`: a real iterator, or an object of the program with `__next__`."""
    cls = type(value)
    if cls is InlinedGenerator:
        return value
    guard_context = interpreter.guard_context
    if cls in EXACT:
        check_lookups(value)
        return _iterate_container(interpreter, value, interpreter.side_effects.contents(value))
    if cls in DICT_VIEWS:
        if id(value) in guard_context.known:
            raise BreakRequested("unsupported-container", f"a {cls.__qualname__} from outside")
        return _iterate_container(interpreter, value, value)
    if cls in TENSORS:
        check_original(guard_context, "__iter__", value)
        check_original(guard_context, "unbind", value)  # which `Tensor.__iter__` calls
    if cls in TENSORS and value.dim():
        return iter(leaf_call(interpreter, torch.Tensor.unbind, (value, 0), {}))
    if cls in CONSTANTS or cls in TENSORS:
        return interpreter.native(iter, value)
    method = guard_context.lookup(cls, "__iter__")
    if type(method) is types.FunctionType:
        iterator = interpreter.call(method, value)
        if guard_context.lookup(type(iterator), "__next__") is ABSENT:
            raise ProgramRaised(no_iterator(cls, guard_context.type_of(iterator)))
        return iterator
    if method is ABSENT:
        getitem = guard_context.lookup(cls, "__getitem__")
        if type(getitem) is types.FunctionType:
            return GetitemIterator(interpreter, iter, value, getitem)
        if issubclass(type(value), type):
            return _iterate_class(interpreter, value)
        return interpreter.native(iter, value)
    if id(value) in guard_context.known:
        if issubclass(type(value), (tuple, list, dict)):
            return iter(interpreter.side_effects.contents(value))
        if issubclass(type(value), type):
            return _iterate_class(interpreter, value)
        if interpreter.outside_iterators.knows(value):
            return value
        if issubclass(cls, (str, bytes)):  # a subclass's, guarded by identity
            return interpreter.native(iter, value)
        entries = entries_of(interpreter, value)
        if entries is not value:
            return interpreter.native(iter, entries)
        raise BreakRequested("unsupported-container", f"iterating over {cls.__qualname__}")
    return interpreter.native(iter, value)


def _iterate_container(interpreter: Interpreter, value: object, contents: Any) -> object:
    iterator = iter(contents)
    if issubclass(type(value), dict) or type(value) in DICT_VIEWS:
        interpreter.dict_iterators[id(iterator)] = (iterator, value, len(contents))
    return iterator


def _iterate_class(interpreter: Interpreter, value: type) -> Any:
    """Enum classes and the like: members are guarded by the class."""
    members = interpreter.native(list, value)
    source = interpreter.guard_context.source_of_function
    for member in members:
        source(member)
    return iter(members)


def next_of(interpreter: Interpreter, iterator: object) -> object:
    """`next(iterator)`; ProgramRaised(StopIteration) at the end."""
    cls = type(iterator)
    if cls.__module__ != "builtins":
        method = interpreter.guard_context.lookup(cls, "__next__")
        if type(method) is types.FunctionType and not cls.__module__.startswith("braze.capture."):
            return interpreter.call(method, iterator)
    if interpreter.outside_iterators.knows(iterator):
        return interpreter.outside_iterators.next(iterator)
    if id(iterator) in interpreter.guard_context.known:
        raise BreakRequested("unseen-callable", f"next of {cls.__qualname__} from outside")
    return interpreter.native(next, iterator)


def is_uniterable(interpreter: Interpreter, value: object) -> bool:
    """Whether the class of a value has no way to iterate."""
    guard_context = interpreter.guard_context
    cls = guard_context.type_of(value)
    return all(guard_context.lookup(cls, name) is ABSENT for name in ("__iter__", "__getitem__"))


def counted_iterable(interpreter: Interpreter, value: object) -> Any:
    """An iterable for native code that makes a list or tuple of it: such code asks how many items
    there may be, once it has the iterator."""
    made = native_iterable(interpreter, value)
    ask_length(interpreter, value)
    return made


def ask_length(interpreter: Interpreter, value: object) -> None:
    """Run what `operator.length_hint(value)` runs of the program's. The answer reserves memory."""
    if type(value) is GetitemIterator:  # C code's own, which asks for a length alone
        if interpreter.guard_context.lookup(type(value.owner), "__len__") is not ABSENT:
            interpreter.length(value.owner)
        return
    guard_context = interpreter.guard_context
    cls: Any = type(value)
    if not cls.__flags__ & _HEAP_TYPE or cls.__module__.startswith("braze.capture."):
        return
    try:
        method = guard_context.lookup(cls, "__len__")
        if type(method) is types.FunctionType:
            interpreter.length(value)
        if method is not ABSENT:
            return
    except ProgramRaised as raised:
        if not isinstance(raised.exception, TypeError):
            raise
    method = guard_context.lookup(cls, "__length_hint__")
    if type(method) is types.FunctionType:
        try:
            hint = interpreter.call(method, value)
        except ProgramRaised as raised:
            if not isinstance(raised.exception, TypeError):
                raise
        else:
            interpreter.native(operator.length_hint, _Hint(hint))


class _Hint:
    """Of the answer that a `__length_hint__` gave: C code says what is wrong with it."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def __length_hint__(self) -> object:
        return self._answer


_HEAP_TYPE = 1 << 9


def set_members(value: Any) -> list[object]:
    """The members of a set, past the `__iter__` of its class."""
    base = set if issubclass(type(value), set) else frozenset
    return [*base.__iter__(value)]


def keyed_iterable(interpreter: Interpreter, value: Any) -> object:
    """What a set's C code takes members from. Of sets and dicts it reads the memory, with the
    hashes that are kept there: from a list of the same members it would ask each for its hash."""
    if issubclass(type(value), SETS):
        contents = interpreter.side_effects.contents(value)
        interpreter.guard_context.guard_identities(set_members(contents))
        return contents
    if type(value) is not dict:
        value = interpreter.native(list, native_iterable(interpreter, value))
    else:
        value = interpreter.side_effects.contents(value)
    interpreter.guard_context.guard_identities(value)
    return value


def native_iterable(interpreter: Interpreter, value: object) -> Any:
    """Something that native code may iterate, with the same items."""
    cls = type(value)
    if cls in EXACT:
        check_lookups(value)
        return interpreter.side_effects.contents(value)
    if cls in CONSTANTS or cls is InlinedGenerator:
        return value
    iterator, known = iterator_of(interpreter, value), interpreter.guard_context.known
    method = interpreter.guard_context.lookup(type(iterator), "__next__")
    own = type(iterator).__module__.startswith("braze.capture.")
    if (type(method) is types.FunctionType and not own) or id(iterator) in known:
        return ProtocolIterator(interpreter, iterator)
    return iterator
