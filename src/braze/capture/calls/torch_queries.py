"""Questions of the program to torch's C functions that take no tensors.

`torch.get_num_threads()`, `torch.backends.mkldnn.enabled`, `torch.cuda.is_available()` end in a C
function that says something of the process. It is asked for real, once, if it is known what keeps
the answer true (`state_queries.py`): the ambient vector, a guard of its own, or the build.
What is in no list breaks the graph: it may change something, or change by itself.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_allowlist import is_binding_record
from braze.capture.calls.torch_calls import call_name, leaf_call
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.guard_context import CONSTANTS, TENSORS
from braze.compat import private_names as private
from braze.compat.torch.state_queries import (
    AMBIENT_QUESTIONS,
    AMBIENT_SETTERS,
    ANY_AUTOCAST,
    ASKED_AGAIN,
    AUTOCAST_CALLS,
    CONSTANT_QUESTIONS,
    FACTS_OF_OBJECTS,
    GUARDED_DEVICES,
    IN_WHOLE_BACKWARD,
    OPERATOR_HOMES,
    autocast_elsewhere,
)
from braze.ir.captured.guard import GuardKind
from braze.ir.captured.source import ObjectSource

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_PLAIN = (bool, int, str, type(None), torch.device, torch.dtype)


def is_question(function: object) -> bool:
    """Whether a C function of torch's is a free function, and none that makes calls of ATen's
    operators alone."""
    if type(function) is not types.BuiltinFunctionType:
        return False
    home = function.__self__
    if type(home) is types.ModuleType:
        return id(home) not in OPERATOR_HOMES or function in CONSTANT_QUESTIONS
    return is_binding_record(home)


def ask_torch(
    interpreter: Interpreter, function: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """The answer of a C function of torch's that is no operator."""
    if _has_tensor(args) or _has_tensor(tuple(kwargs.values())):
        return leaf_call(interpreter, function, args, kwargs)
    if function in AMBIENT_QUESTIONS or function in AMBIENT_SETTERS:
        return interpreter.native(function, *args, **kwargs)
    if function is ANY_AUTOCAST:
        here = any(interpreter.native(torch.is_autocast_enabled, d) for d in GUARDED_DEVICES)
        return here or _ask_again(interpreter, autocast_elsewhere, ())
    if function in AUTOCAST_CALLS and not kwargs:
        if not args or args[0] in GUARDED_DEVICES or type(args[0]) is bool:
            return interpreter.native(function, *args)
    elif _compares_enums(function, args) and not kwargs:
        return interpreter.native(function, *args)
    elif function in CONSTANT_QUESTIONS:
        return _known(interpreter, function, interpreter.native(function, *args, **kwargs))
    elif function in FACTS_OF_OBJECTS and len(args) == 1 and not kwargs:
        return _ask_object(interpreter, function, args[0])
    elif function in ASKED_AGAIN and not kwargs and all(type(v) in _PLAIN for v in args):
        return _ask_again(interpreter, function, args)
    raise BreakRequested("unseen-callable", call_name(function))


@answers(IN_WHOLE_BACKWARD)
def ask_engine(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Whether the backward that the thread is in, if any, is one of all leaves."""
    return _ask_again(interpreter, IN_WHOLE_BACKWARD, ())


@answers(torch.cuda.get_device_capability)
def ask_capability(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """What a card can compute."""
    return _ask_card(interpreter, torch.cuda.get_device_capability, args, kwargs)


@answers(torch.cuda.get_device_name)
def ask_card_name(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """How a card is called."""
    return _ask_card(interpreter, torch.cuda.get_device_name, args, kwargs)


@answers(private.are_all_true)
def ask_all(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A tensor for its truth, which is asked by whoever calls: there the other side of a branch
    raises, so that it can be assumed (assertions.py)."""
    valid, _ = args
    return interpreter.call(private.is_all_true, valid)


def _ask_card(
    interpreter: Interpreter,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """Ask a fact of a card, which stays as it is; which card is the current one may change."""
    device = (*args, *kwargs.values(), None)[0]
    if type(device) not in _PLAIN:
        raise BreakRequested("unseen-callable", call_name(function))
    if type(device) is int or getattr(device, "index", None) is not None:
        return interpreter.native(function, device)
    return _ask_again(interpreter, function, (device,))


def _compares_enums(function: Any, args: tuple[object, ...]) -> bool:
    """Whether a method of an enumeration of C++ is called: its members never change."""
    members = getattr(type(args[0]), "__members__", None) if args else None
    return type(members) is dict and function.__name__ in _ENUM_METHODS


_ENUM_METHODS = frozenset(
    "__eq__ __ne__ __hash__ __int__ __index__ __repr__ __str__ name value".split()
)


def _ask_object(interpreter: Interpreter, function: Any, owner: Any) -> object:
    """Ask an object, and at each call that which is found at its place."""
    source = interpreter.guard_context.source_of(owner)
    if source is None:
        raise BreakRequested("unseen-callable", f"{call_name(function)} of a new object")
    answer = function(owner)
    interpreter.guard_context.guard(source, GuardKind.ANSWER, (function, (), answer))
    return answer


def _ask_again(interpreter: Interpreter, function: Any, args: tuple[object, ...]) -> object:
    """Ask, and at each call of the entry once more."""
    guard_context = interpreter.guard_context
    key = (function, args, "answer")
    if key not in guard_context.reads:
        answer = interpreter.native(function, *args)
        guard_context.guard(None, GuardKind.ANSWER, (function, args, answer))
        guard_context.reads[key] = answer
    answer = guard_context.reads[key]
    if type(answer) is list:
        return list(answer)
    return _known(interpreter, function, answer)


def _known(interpreter: Interpreter, function: object, answer: object) -> object:
    """An answer that is an object of torch's, with a name by which it is found again."""
    if type(answer) in CONSTANTS or type(answer) in (list, tuple, dict):
        return answer
    return interpreter.guard_context.track(answer, ObjectSource(f"{call_name(function)}()", answer))


def _has_tensor(values: Any) -> bool:
    for value in values:
        if type(value) in TENSORS:
            return True
        if type(value) in (list, tuple) and _has_tensor(value):
            return True
    return False
