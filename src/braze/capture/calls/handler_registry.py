"""The table of callables that capture answers itself instead of interpreting or calling them.

Handlers stand beside the concept they serve and register here; the registry imports none of them.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from braze.capture.calls.torch_function import call_overriding, is_overridable
from braze.capture.frames.control_signals import ProgramRaised

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# handler(interpreter, args, kwargs) -> result
CallHandler: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

CALL_HANDLERS: dict[Any, CallHandler] = {}


def answers(*callables: object) -> Callable[[CallHandler], CallHandler]:
    """Register a handler for callables, each of which may have one."""

    def register(handler: CallHandler) -> CallHandler:
        for function in callables:
            if function is None:  # what this PyTorch lacks
                continue
            if function in CALL_HANDLERS:
                raise RuntimeError(f"two handlers for {function}")
            CALL_HANDLERS[function] = handler
        return handler

    return register


def is_answered(function: object) -> bool:
    """Whether a call of a function does something else than what its code says."""
    return function in CALL_HANDLERS


def answer(
    interpreter: Interpreter,
    function: object,
    handler: CallHandler,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """Call a handler. Arguments that do not fit the function it stands for are the program's
    mistake, and raise what Python raises."""
    if interpreter.guard_context.has_overrides and is_overridable(function):
        found = call_overriding(interpreter, function, args, kwargs)
        if found is not None:
            return found[0]
    least, most = _bounds(function)
    fits = _is_bound_to_fitting(function, args) and len(args) <= most
    if kwargs:
        fits = fits and _takes_keywords(function, len(args), tuple(kwargs))
    if not fits or (not kwargs and len(args) < least):
        error = _misfit(function, args, kwargs)
        if error is not None:
            raise ProgramRaised(error)
    try:
        return handler(interpreter, args, kwargs)
    except (TypeError, ValueError, LookupError):
        error = _misfit(function, args, kwargs)
        if error is None:
            raise
    raise ProgramRaised(error)


_ANY = (0, sys.maxsize)
# How many positional arguments builtins take that have no signature.
_BOUNDS: dict[Any, tuple[int, int]] = {
    getattr: (2, 3),
    iter: (1, 2),
    next: (1, 2),
    slice: (1, 3),
    range: (1, 3),
    dir: (0, 1),
    vars: (0, 1),
    dict: (0, 1),
    dict.__getitem__: (2, 2),
    dict.pop: (2, 3),
    dict.update: (1, 2),
    max: (1, sys.maxsize),
    min: (1, sys.maxsize),
}


@functools.lru_cache(maxsize=4096)
def _bounds(function: object) -> tuple[int, int]:
    """How many positional arguments a function takes, as far as that is known."""
    signature = _signature(function)
    if signature is None:
        return _BOUNDS.get(function, _ANY)
    parameters = signature.parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind in _POSITIONAL]
    rest = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    return len(needed), sys.maxsize if rest else len(parameters)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


@functools.lru_cache(maxsize=4096)
def _takes_keywords(function: object, count: int, names: tuple[str, ...]) -> bool:
    """Whether a call with `count` positional arguments and these keywords can be bound; True
    where a function has no signature: the handler knows."""
    signature = _signature(function)
    if signature is None:
        if function is type and count == 1:
            return False
        taken = _KEYWORDS.get(function, () if function in _BOUNDS else None)
        return taken is None or set(names) <= set(taken)
    try:
        signature.bind(*[None] * count, **dict.fromkeys(names))
    except TypeError:
        return False
    return True


# Keywords that builtins take which have bounds and no signature; None: any.
_KEYWORDS: dict[Any, tuple[str, ...] | None] = {
    dict: None,
    dict.update: None,
    max: ("key", "default"),
    min: ("key", "default"),
}


def _is_bound_to_fitting(function: object, args: tuple[Any, ...]) -> bool:
    """Whether the first argument is what a method in C is a method of: an instance, or a class."""
    owner = getattr(function, "__objclass__", None)
    if owner is None:
        return True
    if type(function) is types.ClassMethodDescriptorType:
        return bool(args) and issubclass(type(args[0]), type) and issubclass(args[0], owner)
    return bool(args) and isinstance(args[0], owner)


def _misfit(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TypeError | None:
    """The error of a call that fails while arguments are bound; None if they can be."""
    if _is_bound_to_fitting(function, args):
        signature = _signature(function)
        least, most = _bounds(function)
        takes = not kwargs or _takes_keywords(function, len(args), tuple(kwargs))
        if signature is None and takes and least <= len(args) <= most:
            return None
        try:
            if signature is None:
                raise TypeError
            signature.bind(*args, **kwargs)
            return None
        except TypeError:
            pass
    try:
        function(*args, **kwargs)  # it fails before any of its code runs
    except TypeError as error:
        return error
    return None
