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
from typing import Any

from braze.capture.handler_table import answers
from braze.capture.opaque_objects import WeakProxy
from braze.capture.signals import BreakRequested, ProgramRaised
from braze.capture.world import TENSORS
from braze.compat.standard_library import registry_of
from braze.ir.guard import GuardKind
from braze.ir.source import DictKeySource, ItemSource, ObjectSource

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


def _ask(function: Any) -> Any:
    def answer(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for value in (*args, *kwargs.values()):
            interpreter.world.harden(value)
        return interpreter.native(function, *args, **kwargs)

    return answer


for _function in _QUESTIONS:
    answers(_function)(_ask(_function))


def _ask_attributes(function: Any) -> Any:
    def answer(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args or kwargs:
            raise BreakRequested("unseen-callable", f"{function.__name__}() with keywords")
        interpreter.world.harden(args[0])
        _guard_telling(interpreter, args[0], _DEEPEST)
        return interpreter.native(function, *args)

    return answer


# Wrappers are followed; no program wraps a function so often.
_DEEPEST = 8


def _guard_telling(interpreter: Any, value: Any, depth: int) -> None:
    """Guard what a function's signature, or a dataclass's fields, follow from."""
    world = interpreter.world
    if type(value) is types.FunctionType and id(value) not in world.fresh:
        world.source_of_function(value)
        world.guard_function(value)
        for name, default in (value.__kwdefaults__ or {}).items():
            world.guard_namespace(value.__kwdefaults__, name, default, "__kwdefaults__")
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
def subclasses(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[type]:
    """`cls.__subclasses__()`, asked again at each call; where the frame made a class, a break."""
    (cls,) = args
    world = interpreter.world
    made: list[type] = type.__subclasses__(cls)
    by_identity = all(type(each).__eq__ is type.__eq__ for each in made)
    if world.made_classes or not by_identity:
        raise BreakRequested("unseen-callable", "type.__subclasses__ of such classes")
    world.guard(world.source_of_function(cls), GuardKind.ANSWER, (type.__subclasses__, (), made))
    for each in made:
        world.source_of_function(each)
    return list(made)


@answers(
    *(importlib.util.find_spec, importlib.metadata.version, typing.get_type_hints),
    *(os.path.exists, os.path.isdir, os.path.isfile, threading.current_thread),
)
def ask_process(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a file system, a path or a thread says may be something else at the next call."""
    raise BreakRequested("unseen-callable", "a question about files, modules or threads")


def _substitution(method: Any) -> Any:
    """By a text, or by a function that is called for each match."""

    def substitute(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {**dict(zip(("pattern", "repl", "string", "count", "flags"), args)), **kwargs}
        pattern = interpreter.native(re.compile, given["pattern"], given.get("flags", 0))
        count = given.get("count", 0)
        return interpreter.call(method, pattern, given["repl"], given["string"], count)

    return substitute


answers(re.sub)(_substitution(re.Pattern.sub))
answers(re.subn)(_substitution(re.Pattern.subn))


@answers(logging.getLogger)
def get_logger(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    logger = interpreter.native(logging.getLogger, *args, **kwargs)
    return interpreter.world.enroll(logger, ObjectSource(f"logger {logger.name}", logger))


def find_implementation(
    interpreter: Any, dispatch: types.FunctionType, args: tuple[Any, ...]
) -> Any:
    """What a `functools.singledispatch` function runs for a class: asked for real, and good as
    long as the same is registered."""
    world = interpreter.world
    world.harden(dispatch)
    registry = registry_of(dispatch)
    world.keep(registry)
    source = ObjectSource(f"registry of {dispatch.__qualname__}", registry)
    world.guard(source, GuardKind.LENGTH, len(registry))
    for index, (cls, function) in enumerate(registry.items()):
        world.guard(DictKeySource(source, index), GuardKind.ID_MATCH, cls)
        world.guard(ItemSource(source, cls), GuardKind.ID_MATCH, function)
        if isinstance(cls, abc.ABCMeta) and isinstance(args[0], type):
            world.guard_abstract(args[0], cls)
    found = interpreter.native(dispatch, *args)
    return world.enroll(found, ObjectSource(f"an implementation of {found!r}", found))


@answers(logging.Logger.isEnabledFor)
def is_enabled_for(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The answer is kept in a dict of the logger, which is read; it is found under a lock."""
    known = args and id(args[0]) in interpreter.world.known
    if known and type(args[0]) is logging.Logger and type(args[-1]) is int:
        interpreter.native(logging.Logger.isEnabledFor, *args)
    return interpreter.call_python(logging.Logger.isEnabledFor, args, kwargs)


@answers(weakref.proxy)
def weak_proxy(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target = args[0]
    world = interpreter.world
    if len(args) != 1 or kwargs or id(target) in world.known or type(target) in TENSORS:
        detail = "a weak proxy, which passes for another object"
        raise BreakRequested("unsupported-function", detail)
    made = interpreter.native(weakref.proxy, target)
    world.proxies[id(made)] = WeakProxy(made, weakref.ref(target), interpreter.outer_step)
    return made


@answers(gc.collect)
def collect_garbage(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Now, for what the program made here, and again after the graph ran."""
    interpreter.late_calls.append((gc.collect, args))
    return interpreter.native(gc.collect, *args, **kwargs)


@answers(typing.cast)
def cast(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1]


@answers(sys.exc_info)
def exc_info(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    exception = handled_exception(interpreter, args, kwargs)
    if exception is None:
        return None, None, None
    return type(exception), exception, interpreter.attribute(exception, "__traceback__")


@answers(sys.exception)
def handled_exception(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return interpreter.handled()
