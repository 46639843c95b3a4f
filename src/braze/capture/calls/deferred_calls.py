"""Calls that are put off until the graph ran: warnings, log lines, and what
`config.reorderable_logging_functions` names. They are made in order, at the frame's end or at its
next break, and show the values that their arguments had."""

from __future__ import annotations

import functools
import logging
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import unnoted_call
from braze.capture.frames.control_signals import BreakRequested, CannotRebuild
from braze.capture.state.guard_context import is_constant, is_identity
from braze.capture.state.provenance import module_of_class
from braze.compat.python.lru_caches import FilledCall, RepeatedCall
from braze.compat.python.packages import is_installed
from braze.compat.python.stdlib import (
    FILTERS_LOCK,
    FILTERS_MUTATED,
    FILTERS_MUTATED_UNDER_LOCK,
)
from braze.ir.captured.guard import ABSENT
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_REORDERABLE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)


@final
class Logged:
    """A tensor that is logged: itself where it is not written to afterwards, else a copy made
    when it was logged."""

    def __init__(self, interpreter: Interpreter, tensor: Any) -> None:
        self.tensor = tensor
        self.step = interpreter.outer_step
        self.writes = _writes_to(tensor)
        self.copy = None
        if not tensor.requires_grad:
            self.copy = unnoted_call(interpreter, torch.clone, (tensor,), {})

    def final_value(self) -> object:
        """The fake tensor that the call gets. Raises CannotRebuild for a tensor that changed and
        whose copy would show: it has gradients."""
        if _writes_to(self.tensor) == self.writes:
            return self.tensor
        if self.copy is None:
            raise CannotRebuild("a logged tensor that is written to afterwards", self.step)
        return self.copy


def is_reorderable(interpreter: Interpreter, function: object) -> bool:
    """Whether the user let calls of a function be moved behind the graph."""
    options = interpreter.request.options
    if options is None or not options.reorderable_logging_functions:
        return False
    return type(function) in _REORDERABLE and function in options.reorderable_logging_functions


def call_later(
    interpreter: Interpreter, function: Any, args: tuple[object, ...], kwargs: dict[str, Any]
) -> None:
    """Put a call off. Its result is taken to be None."""
    if not all(is_constant(value) or is_identity(value) for value in kwargs.values()):
        raise BreakRequested("input-output", f"{function.__name__}() with such keywords")
    values = tuple([snapshot(interpreter, function, value) for value in args])
    late = functools.partial(function, **kwargs) if kwargs else function
    interpreter.deferred_calls.append((late, values))


def final_arguments(call: object, values: tuple[object, ...]) -> object:
    """The arguments of a call that was put off: as they are to be shown, but that a cache gets the
    very objects."""
    return values if type(call) in (FilledCall, RepeatedCall) else final_values(values)


def final_values(value: Any) -> object:
    """The arguments of a call that was put off, as they are to be shown."""
    if type(value) is Logged:
        return value.final_value()
    if type(value) in (list, tuple):
        return type(value)([final_values(item) for item in value])
    if type(value) is dict:
        return {key: final_values(item) for key, item in value.items()}
    return value


def snapshot(interpreter: Interpreter, function: Any, value: Any) -> Any:
    """An argument of a call that is put off, as it is now."""
    if is_constant(value):
        return value
    if type(value) is TracedTensor:
        return Logged(interpreter, value)
    contents = interpreter.side_effects.contents
    if type(value) in (list, tuple):
        return type(value)([snapshot(interpreter, function, v) for v in contents(value)])
    if type(value) is dict and all(map(is_constant, value)):
        items = contents(value).items()
        return {key: snapshot(interpreter, function, item) for key, item in items}
    raise BreakRequested("input-output", f"{function.__name__}() of a {type(value).__name__}")


def _writes_to(tensor: Any) -> int:
    place = tensor.place
    return int((place.base or place).version)


@answers(warnings.warn)
def warn(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """A warning is given after the graph ran."""
    level = args[2] if len(args) > 2 else kwargs.get("stacklevel", 1)
    if kwargs.keys() - {"category", "stacklevel"} or type(level) is not int:
        raise BreakRequested("input-output", "warnings.warn")
    category = args[1] if len(args) > 1 else kwargs.get("category")
    values = (args[0], category) if category is not None else (args[0],)
    if not all(isinstance(value, (str, type)) for value in values):
        raise BreakRequested("input-output", "warnings.warn")
    if _are_filters_changed(interpreter):
        if _is_ignored(interpreter, category or UserWarning):
            return
        raise BreakRequested("input-output", "warnings.warn, where the frame changed the filters")
    if interpreter.warned_at < 0:
        interpreter.warned_at = interpreter.outer_step
    interpreter.put_off(functools.partial(warnings.warn, stacklevel=level), values, max(level, 1))


def _are_filters_changed(interpreter: Interpreter) -> bool:
    """Whether what decides over a warning is not what it will be after the frame."""
    side_effects = interpreter.side_effects
    space = vars(warnings)
    if any(_is_other(side_effects.written(space, name), space[name]) for name in _DECIDING):
        return True
    shadow = side_effects.shadows.get(id(warnings.filters))
    return id(warnings.filters) in side_effects.added or (shadow is not None and shadow.changed)


def _is_ignored(interpreter: Interpreter, category: object) -> bool:
    """Whether the first of the filters that the frame made ignores every warning of a category."""
    side_effects = interpreter.side_effects
    filters = side_effects.written(vars(warnings), "filters")
    if type(filters) is not list or not side_effects.contents(filters):
        return False
    first = side_effects.contents(filters)[0]
    if type(first) is not tuple or first[:2] != ("ignore", None) or first[3:] != (None, 0):
        return False
    return isinstance(category, type) and issubclass(category, first[2])


def _is_other(written: object, before: object) -> bool:
    return written is not ABSENT and written is not before


_DECIDING = ("filters", "showwarning", "_showwarnmsg_impl")


@answers(*FILTERS_LOCK)
def leave_lock(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """The filters change when the frame is over, and nobody waits for them meanwhile."""


@answers(FILTERS_MUTATED, FILTERS_MUTATED_UNDER_LOCK)
def filters_mutated(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """The filters are as the frame leaves them when it is over: what was put off before would be
    filtered by those."""
    if interpreter.warned_at >= 0:
        problem = BreakRequested("input-output", "warnings.warn, before the filters change")
        problem.step = interpreter.warned_at
        raise problem
    interpreter.deferred_calls.append((FILTERS_MUTATED, ()))


def _is_handled(interpreter: Interpreter, logger: object) -> bool:
    """Whether a log line comes to handlers or filters that are the program's. Guards which classes
    it comes to."""
    left = [*_attached(interpreter, logger, "filters")]
    place = logger
    while place is not None:
        left += _attached(interpreter, place, "handlers")
        more = interpreter.attribute(place, "propagate")
        place = interpreter.attribute(place, "parent") if more else None
    if not all(_is_of_library(interpreter, item) for item in left):
        return True
    handlers = [item for item in left if issubclass(type(item), logging.Handler)]
    filters = [item for handler in handlers for item in _attached(interpreter, handler, "filters")]
    return not all(_is_of_library(interpreter, item) for item in filters)


def _is_of_library(interpreter: Interpreter, item: object) -> bool:
    """Whether what a log line comes to is an object of a class that the program did not write."""
    cls = interpreter.guard_context.type_of(item)
    return issubclass(cls, (logging.Handler, logging.Filter)) and is_installed(module_of_class(cls))


def _attached(interpreter: Interpreter, owner: object, name: str) -> list[Any]:
    held = interpreter.attribute(owner, name)
    return list(interpreter.side_effects.contents(held)) if type(held) is list else [held]


def _log(function: Any) -> Callable[..., object]:
    """A log line of constants is written after the graph ran, where what writes it is the
    library's: the frame may read what a handler of the program's changes, or catch what it raises.
    """

    def note(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if args and issubclass(type(args[0]), logging.Logger) and _is_handled(interpreter, args[0]):
            raise BreakRequested("input-output", "a log line, which code of the program's handles")
        if kwargs or not all(is_constant(value) for value in args[1:]):
            raise BreakRequested("input-output", f"a log line: Logger.{function.__name__}")
        interpreter.put_off(function, args)

    return note


for _name in ("debug", "info", "warning", "error", "critical", "log"):
    answers(getattr(logging.Logger, _name))(_log(getattr(logging.Logger, _name)))
