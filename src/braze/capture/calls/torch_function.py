"""Calls of torch that an argument's class answers itself, by a `__torch_function__` of its own.

PyTorch asks each argument's class before it does anything. Which function it asks for, and with
what arguments, C code decides (`x + 1` asks for `Tensor.add`): so the call is made with stand-ins
in place of such arguments, whose `__torch_function__` has the program's interpreted. Other objects
are asked for one, too; where that is found otherwise than on their class, the graph breaks.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, final

import torch

from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.state.guard_context import CONSTANTS, TENSORS
from braze.compat.python.iterator_state import base_items
from braze.compat.torch.dispatcher import (
    TorchFunction,
    make_wrapper,
    torch_function_enabled,
    torch_function_of,
)
from braze.ir.captured.guard import ABSENT
from braze.tracing.errors import Untraceable

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.capture.state.guard_context import GuardContext

_NAME = "__torch_function__"
_PLAIN = CONSTANTS | TENSORS
# The class of torch.HalfTensor and the like, whose `__torch_function__` is torch.Tensor's: it makes
# the call, and its result is of that type already. So does torch.Tensor, an argument of `__new__`.
_LEGACY_TYPE = type(torch.FloatTensor)
# PyTorch does not ask these (`is_basic_python_type`).
_NEVER_ASKED = frozenset(
    {dict, set, slice, range, types.ModuleType, type(Ellipsis), type(NotImplemented)}
)


@final
class Overrider(torch.Tensor):
    """What a torch function gets for an argument whose class answers the call.

    argument: that argument. ask: called with the function, its arguments and its keywords.
    """

    __slots__ = ("argument", "ask")
    argument: Any
    ask: Callable[[Any, Any, Any], Any]

    @classmethod
    def __torch_function__(
        cls, func: object, types: object, args: object = (), kwargs: object = None
    ) -> Any:
        kwargs = kwargs or {}
        return next(_parts((args, kwargs), Overrider)).ask(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: object, types: object, args: object = (), kwargs: object = None
    ) -> object:
        raise Untraceable(f"{op}, which does not ask for {_NAME}")


def note_overrides(guard_context: GuardContext, cls: type) -> None:
    """From now on calls may have arguments that answer them, if the class does."""
    if torch_function_of(cls) is TorchFunction.OWN:
        guard_context.has_overrides = True


def call_overriding(
    interpreter: Interpreter, function: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[object] | None:
    """The result of a call that an argument's class answers, in a tuple; None where none does."""
    guard_context = interpreter.guard_context
    if not guard_context.has_overrides or not is_overridden(interpreter, (args, kwargs)):
        return None
    asked: list[Any] = []

    def ask(func: object, given: object, keywords: object) -> Any:
        asked.append(func)
        arguments = _replaced(given, _argument), _replaced(keywords, _argument)
        return _answer(interpreter, func, *arguments)

    def stand_in(value: object) -> object:
        if type(value) not in TENSORS or not _overrides(guard_context, value):
            return value
        made = make_wrapper(Overrider, (0,))
        made.argument, made.ask = value, ask
        return made

    given, keywords = _replaced(args, stand_in), _replaced(kwargs, stand_in)
    try:
        result = interpreter.native(function, *given, **keywords)
    except (BreakRequested, ProgramRaised):
        if asked:
            raise
        return None
    return (_replaced(result, _argument),) if asked else None


def is_overridden(interpreter: Interpreter, values: object) -> bool:
    """Whether one of a call's arguments answers it."""
    guard_context = interpreter.guard_context
    found = [_overrides(guard_context, value) for value in _parts(values, *TENSORS)]
    return any(found) and torch_function_enabled()


@functools.cache
def is_overridable(function: object) -> bool:
    """Whether a function of torch's asks its arguments."""
    return function in _overridable()


@functools.cache
def _overridable() -> frozenset[object]:
    found = torch.overrides.get_overridable_functions().values()
    return frozenset(function for functions in found for function in functions)


def ask_overriding(
    interpreter: Interpreter, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """What the classes of a call's arguments answer."""
    try:
        return _answer(interpreter, function, args, kwargs)
    except BreakRequested:
        raise
    except Exception as problem:
        return interpreter.native(_raise, problem)


def _raise(problem: Exception) -> NoReturn:
    raise problem


def _answer(interpreter: Interpreter, function: object, args: object, kwargs: object) -> object:
    """What the first class says that does not answer NotImplemented."""
    classes = classes_in_order(interpreter, (args, kwargs), _is_asked)
    for cls in classes:
        method = interpreter.guard_context.lookup(cls, _NAME)
        called = method.__func__ if type(method) is classmethod else None
        if type(called) is not types.FunctionType:
            raise BreakRequested("unsupported-tensor", f"{cls.__qualname__}.{_NAME}")
        interpreter.guard_context.source_of_function(called)
        result = interpreter.call_raising(called, cls, function, tuple(classes), args, kwargs)
        if result is not NotImplemented:
            return result
    raise BreakRequested("unsupported-tensor", f"{function}, which no tensor subclass implements")


def _is_asked(cls: type) -> bool:
    return torch_function_of(cls) is not TorchFunction.NONE


def classes_in_order(
    interpreter: Interpreter, values: object, is_asked: Callable[[type], bool]
) -> list[type]:
    """The classes among call arguments that are asked, in PyTorch's order: as they come, but a
    subclass before what it derives from."""
    found: list[type] = []
    for value in _parts(values, *TENSORS):
        cls = interpreter.guard_context.type_of(value)
        if cls is torch.Tensor or cls in found or not is_asked(cls):
            continue
        derived = (place for place, other in enumerate(found) if issubclass(cls, other))
        found.insert(next(derived, len(found)), cls)
    return found


def _overrides(guard_context: GuardContext, value: object) -> bool:
    return torch_function_of(guard_context.type_of(value)) is TorchFunction.OWN


def _argument(value: object) -> object:
    return value.argument if type(value) is Overrider else value


def _parts(values: Any, *classes: type) -> Iterator[Any]:
    """Values of the classes among call arguments, and in lists, tuples and dicts there."""
    for value in values:
        cls = type(value)
        if cls in classes:
            yield value
        elif cls is list or cls is tuple:
            yield from _parts(value, *classes)
        elif cls is dict:
            yield from _parts(value.values(), *classes)
        elif cls is slice:
            yield from _parts((value.start, value.stop, value.step), *classes)


def _replaced(value: Any, replace: Callable[[object], object]) -> Any:
    cls = type(value)
    if cls is list or cls is tuple:
        return cls([_replaced(item, replace) for item in value])
    if cls is dict:
        return {key: _replaced(item, replace) for key, item in value.items()}
    if cls is slice:
        parts = (value.start, value.stop, value.step)
        return slice(*[_replaced(part, replace) for part in parts])
    return replace(value)


def check_overrides(interpreter: Interpreter, name: str, values: Iterable[object]) -> None:
    """A break where a value answers a torch call. name: of the function, as a user writes it."""
    for value in values:
        cls = type(value)
        if cls in _PLAIN or cls in _NEVER_ASKED or cls is _LEGACY_TYPE or value is torch.Tensor:
            continue
        if issubclass(cls, torch.Tensor) and torch_function_of(cls) is not TorchFunction.OWN:
            continue  # as the parameters in the list that a recurrent layer passes
        if cls is tuple or cls is list:
            check_overrides(interpreter, name, base_items(value))
        elif _answers(interpreter, value, cls):
            detail = f"{name} of a {cls.__qualname__} with a {_NAME} of its own"
            raise BreakRequested("unseen-python", detail)


def _answers(interpreter: Interpreter, value: Any, cls: type) -> bool:
    guard_context = interpreter.guard_context
    if guard_context.lookup(cls, _NAME) is not ABSENT:
        return True
    if issubclass(cls, type):
        return guard_context.lookup(value, _NAME) is not ABSENT
    hooks = (
        guard_context.lookup(cls, "__getattr__"),
        guard_context.lookup(cls, "__getattribute__"),
    )
    if any(type(hook) is types.FunctionType for hook in hooks):
        return True  # which may find one
    return _is_in_dict(interpreter, value)


def _is_in_dict(interpreter: Interpreter, value: object) -> bool:
    try:
        space = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return False
    if _NAME in space or interpreter.side_effects.written(space, _NAME) is not ABSENT:
        return True
    if id(value) in interpreter.guard_context.known:
        interpreter.guard_context.guard_lacks_attribute(space, value, _NAME)
    return False
