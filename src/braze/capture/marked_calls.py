"""Calls of what users marked: left out, taken as they are, called once, or already compiled."""

from __future__ import annotations

from typing import Any

import torch

from braze.capture.attributes import load_class_attribute
from braze.capture.leaf_calls import leaf_call
from braze.capture.signals import BreakRequested
from braze.capture.world import TENSORS
from braze.compat.ambient import call_untraced
from braze.ir.source import ObjectSource
from braze.marks import MARKS, Mark

# Where a compiled module's class has the module that it was made from.
_SHIELD_MODULE = "braze.runtime.module_shield"
_ORIGINAL = "_braze_original"


class Redirect:
    """Call this instead."""

    __slots__ = ("args", "function")

    def __init__(self, function: Any, args: tuple[Any, ...]) -> None:
        self.function = function
        self.args = args


NOT_MARKED = object()


def call_marked(
    interpreter: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of calling a marked function, a Redirect, or NOT_MARKED."""
    mark = MARKS.of(function)
    if mark is None:
        if getattr(function, "__module__", None) == _SHIELD_MODULE and args:
            cls = type(args[0])
            return Redirect(load_class_attribute(interpreter, cls, _ORIGINAL), args[1:])
        return NOT_MARKED
    name = getattr(function, "__qualname__", None) or repr(type(function))
    if mark is Mark.COMPILED:
        return Redirect(function.__wrapped__, args)
    if mark is Mark.IS_COMPILING:
        return True
    if mark is Mark.ALLOW_IN_GRAPH:
        return leaf_call(interpreter, function, args, kwargs)
    if mark is Mark.ASSUME_CONSTANT:
        return _call_once(interpreter, function, args, kwargs, name)
    raise BreakRequested("not-inlined" if mark is Mark.DISABLE else "explicit", name)


def _call_once(
    interpreter: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> Any:
    if any(type(value) in TENSORS for value in (*args, *kwargs.values())):
        raise BreakRequested("explicit", f"{name} is assumed constant but takes a tensor")
    key = (id(function), "constant", args, tuple(kwargs.items()))
    world = interpreter.world
    try:
        if key in world.reads:
            return world.reads[key]
    except TypeError:
        raise BreakRequested("explicit", f"{name} takes unhashable arguments") from None
    result = interpreter.native(call_untraced, function, args, kwargs)
    if isinstance(result, torch.Tensor):
        made = interpreter.tracer.add_constant(result)
    else:
        made = world.enroll(result, ObjectSource(f"{name}()", result))
    world.reads[key] = made
    return made
