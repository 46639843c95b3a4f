"""Python functions of the standard library that only ask: they are really called."""

from __future__ import annotations

import _thread
import dataclasses
import gc
import importlib.metadata
import importlib.util
import inspect
import logging
import os
import random
import re
import sys
import types
import typing
import weakref
from typing import Any

from braze.capture.handler_table import answers
from braze.capture.signals import BreakRequested
from braze.capture.world import TENSORS, WeakProxy
from braze.ir.source import ObjectSource

_QUESTIONS = (
    inspect.signature,
    inspect.getfullargspec,
    inspect.isclass,
    inspect.isfunction,
    inspect.ismethod,
    dataclasses.fields,
    dataclasses.is_dataclass,
    importlib.util.find_spec,
    importlib.metadata.version,
    typing.get_type_hints,
    typing.get_origin,
    typing.get_args,
    re.compile,
    re.match,
    re.search,
    re.fullmatch,
    re.split,
    re.findall,
    re.escape,
    _thread.get_ident,
    os.fspath,
    os.path.join,
    os.path.exists,
    os.path.isdir,
    os.path.isfile,
)


def _ask(function: Any) -> Any:
    def answer(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for value in (*args, *kwargs.values()):
            interpreter.world.harden(value)
        return interpreter.native(function, *args, **kwargs)

    return answer


for _function in _QUESTIONS:
    answers(_function)(_ask(_function))


def _draw(function: types.FunctionType) -> Any:
    """A method of a generator of random numbers: one made in the frame is the frame's business,
    one from outside is asked for real, once for all numbers that the method draws."""

    def draw(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args and id(args[0]) in interpreter.world.known:
            raise BreakRequested("unseen-callable", f"random.{function.__name__}")
        return interpreter.call_python(function, args, kwargs)

    return draw


for _function in vars(random.Random).values():
    if type(_function) is types.FunctionType and not _function.__name__.startswith("_"):
        answers(_function)(_draw(_function))


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
