"""Python functions of the standard library that only ask: they are really called."""

from __future__ import annotations

import abc
import dataclasses
import gc
import importlib.metadata
import importlib.util
import inspect
import logging
import os
import re
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.state.guard_context import TENSORS
from braze.capture.state.opaque_objects import WeakProxy
from braze.compat.python.stdlib import registry_of
from braze.ir.captured.guard import GuardKind
from braze.ir.captured.source import DictKeySource, ItemSource, ObjectSource

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_QUESTIONS = (
    inspect.isclass,
    inspect.isfunction,
    inspect.ismethod,
    typing.get_origin,
    typing.get_args,
    re.compile,
    re.match,
    re.search,
    re.fullmatch,
    re.split,
    re.findall,
    re.escape,
    os.fspath,
    os.path.join,
)
# What the attributes of a function, a class or an instance say.
_OF_ATTRIBUTES = (
    inspect.signature,
    inspect.getfullargspec,
    dataclasses.fields,
    dataclasses.is_dataclass,
)
_TELLING = (
    *("__wrapped__", "__signature__", "__text_signature__", "__dataclass_fields__"),
    *("__call__", "__new__", "__init__", "__func__", "__annotations__"),
)


def _ask(function: Any) -> Callable[..., object]:
    def answer(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        for value in (*args, *kwargs.values()):
            interpreter.guard_context.guard_identity(value)
        return interpreter.native(function, *args, **kwargs)

    return answer


for _function in _QUESTIONS:
    answers(_function)(_ask(_function))


def _ask_attributes(function: Any) -> Callable[..., object]:
    def answer(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        if not args or kwargs:
            raise BreakRequested("unseen-callable", f"{function.__name__}() with keywords")
        interpreter.guard_context.guard_identity(args[0])
        _guard_telling(interpreter, args[0], _DEEPEST)
        return interpreter.native(function, *args)

    return answer


# Wrappers are followed; no program wraps a function so often.
_DEEPEST = 8


def _guard_telling(interpreter: Interpreter, value: object, depth: int) -> None:
    """Guard what a function's signature, or a dataclass's fields, follow from."""
    guard_context = interpreter.guard_context
    if type(value) is types.FunctionType and id(value) not in guard_context.fresh:
        guard_context.source_of_function(value)
        guard_context.guard_function(value)
        defaults = value.__kwdefaults__ or {}
        for name, default in defaults.items():
            guard_context.guard_namespace(defaults, name, default, "__kwdefaults__")
    if not depth or type(value) in _C_FUNCTIONS:
        return
    for name in _TELLING:
        try:
            found = interpreter.attribute(value, name)
        except ProgramRaised:
            continue
        if type(found) in (types.FunctionType, types.MethodType, type) and found is not value:
            _guard_telling(interpreter, found, depth - 1)


_C_FUNCTIONS = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodWrapperType)

for _teller in _OF_ATTRIBUTES:
    answers(_teller)(_ask_attributes(_teller))


@answers(type.__subclasses__)
def subclasses(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> list[type]:
    """`cls.__subclasses__()`, asked again at each call; where the frame made a class, a break."""
    (cls,) = args
    guard_context = interpreter.guard_context
    made: list[type] = type.__subclasses__(cls)
    by_identity = all(type(each).__eq__ is type.__eq__ for each in made)
    if guard_context.made_classes or not by_identity:
        raise BreakRequested("unseen-callable", "type.__subclasses__ of such classes")
    guard_context.guard(
        guard_context.source_of_function(cls), GuardKind.ANSWER, (type.__subclasses__, (), made)
    )
    for each in made:
        guard_context.source_of_function(each)
    return list(made)


@answers(
    *(importlib.util.find_spec, importlib.metadata.version, typing.get_type_hints),
    *(os.path.exists, os.path.isdir, os.path.isfile, threading.current_thread),
)
def ask_process(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """What a file system, a path or a thread says may be something else at the next call."""
    raise BreakRequested("unseen-callable", "a question about files, modules or threads")


def _substitution(method: object) -> Callable[..., object]:
    """By a text, or by a function that is called for each match."""

    def substitute(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        given = {**dict(zip(("pattern", "repl", "string", "count", "flags"), args)), **kwargs}
        pattern = interpreter.native(re.compile, given["pattern"], given.get("flags", 0))
        count = given.get("count", 0)
        return interpreter.call(method, pattern, given["repl"], given["string"], count)

    return substitute


answers(re.sub)(_substitution(re.Pattern.sub))
answers(re.subn)(_substitution(re.Pattern.subn))


@answers(logging.getLogger)
def get_logger(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    logger = interpreter.native(logging.getLogger, *args, **kwargs)
    return interpreter.guard_context.track(logger, ObjectSource(f"logger {logger.name}", logger))


def find_implementation(
    interpreter: Interpreter, dispatch: types.FunctionType, args: tuple[object, ...]
) -> object:
    """What a `functools.singledispatch` function runs for a class: asked for real, and good as
    long as the same is registered."""
    guard_context = interpreter.guard_context
    guard_context.guard_identity(dispatch)
    registry = registry_of(dispatch)
    guard_context.keep(registry)
    source = ObjectSource(f"registry of {dispatch.__qualname__}", registry)
    guard_context.guard(source, GuardKind.LENGTH, len(registry))
    for index, (cls, function) in enumerate(registry.items()):
        guard_context.guard(DictKeySource(source, index), GuardKind.ID_MATCH, cls)
        guard_context.guard(ItemSource(source, cls), GuardKind.ID_MATCH, function)
        if isinstance(cls, abc.ABCMeta) and isinstance(args[0], type):
            guard_context.guard_abstract(args[0], cls)
    found = interpreter.native(dispatch, *args)
    return guard_context.track(found, ObjectSource(f"an implementation of {found!r}", found))


@answers(logging.Logger.isEnabledFor)
def is_enabled_for(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """The answer is kept in a dict of the logger, which is read; it is found under a lock."""
    known = args and id(args[0]) in interpreter.guard_context.known
    if known and type(args[0]) is logging.Logger and type(args[-1]) is int:
        interpreter.native(logging.Logger.isEnabledFor, *args)
    return interpreter.call_python(logging.Logger.isEnabledFor, args, kwargs)


@answers(weakref.proxy)
def weak_proxy(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    target = args[0]
    guard_context = interpreter.guard_context
    if len(args) != 1 or kwargs or id(target) in guard_context.known or type(target) in TENSORS:
        detail = "a weak proxy, which passes for another object"
        raise BreakRequested("unsupported-function", detail)
    made = interpreter.native(weakref.proxy, target)
    guard_context.proxies[id(made)] = WeakProxy(made, weakref.ref(target), interpreter.outer_step)
    return made


@answers(gc.collect)
def collect_garbage(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Now, for what the program made here, and again after the graph ran."""
    interpreter.deferred_calls.append((gc.collect, args))
    return interpreter.native(gc.collect, *args, **kwargs)


@answers(typing.cast)
def cast(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    return args[1]


@answers(sys.exc_info)
def exc_info(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[None, None, None] | tuple[type[object], object, object]:
    exception = handled_exception(interpreter, args, kwargs)
    if exception is None:
        return None, None, None
    return type(exception), exception, interpreter.attribute(exception, "__traceback__")


@answers(sys.exception)
def handled_exception(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> BaseException | None:
    return interpreter.handled()
