"""The table of callables that capture answers itself instead of interpreting or calling them.

Handlers stand beside the concept they serve and register here; the registry imports none of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from braze.capture.signals import ProgramRaised

# handler(interpreter, args, kwargs) -> result
CallHandler: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

CALL_HANDLERS: dict[Any, CallHandler] = {}


def answers(*callables: Any) -> Callable[[CallHandler], CallHandler]:
    """Register a handler for callables, each of which may have one."""

    def register(handler: CallHandler) -> CallHandler:
        for function in callables:
            if function in CALL_HANDLERS:
                raise RuntimeError(f"two handlers for {function}")
            CALL_HANDLERS[function] = handler
        return handler

    return register


def answer(
    interpreter: Any,
    function: Any,
    handler: CallHandler,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a handler. Arguments that do not fit the function it stands for are the program's
    mistake, and raise what Python raises."""
    owner = getattr(function, "__objclass__", None)
    wrong = owner is not None and not (args and isinstance(args[0], owner))
    most = _most_arguments(function)
    if wrong or (most is not None and len(args) > most):
        error = _misfit(function, args, kwargs)
        if error is not None:
            raise ProgramRaised(error)
    try:
        return handler(interpreter, args, kwargs)
    except (TypeError, ValueError, IndexError):
        error = _misfit(function, args, kwargs)
        if error is None:
            raise
    raise ProgramRaised(error)


@functools.lru_cache(maxsize=4096)
def _most_arguments(function: Any) -> int | None:
    """How many positional arguments a function takes at most, if that is known."""
    signature = _signature(function)
    if signature is None:
        return None
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    return None if inspect.Parameter.VAR_POSITIONAL in kinds else len(kinds)


def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _misfit(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TypeError | None:
    """The error of a call that fails while arguments are bound; None if they can be."""
    owner = getattr(function, "__objclass__", None)
    if owner is None or (args and isinstance(args[0], owner)):
        signature = _signature(function)
        if signature is None:
            return None
        try:
            signature.bind(*args, **kwargs)
            return None
        except TypeError:
            pass
    try:
        function(*args, **kwargs)  # it fails before any of its code runs
    except TypeError as error:
        return error
    return None
