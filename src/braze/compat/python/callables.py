"""Callables of all kinds as Python functions, whose frames a compiler can begin with."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any


def as_function(target: Callable[..., Any]) -> Any:
    """A Python function that calls a callable of another kind: a builtin, a partial, an object
    with `__call__`."""

    def call(*args: object, **kwargs: object) -> object:
        return target(*args, **kwargs)

    if isinstance(target, types.FunctionType):
        return functools.update_wrapper(call, target)
    name = getattr(target, "__name__", type(target).__name__)
    call.__name__, call.__qualname__ = name, getattr(target, "__qualname__", name)
    return call
