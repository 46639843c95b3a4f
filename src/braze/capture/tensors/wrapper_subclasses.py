"""Wrapper subclasses, whose operators run Python code of their class (`__torch_dispatch__`).

The code is the program's: it is interpreted on the fakes of what the wrapper holds, so that the
graph has operators on plain tensors alone, and what the code reads is guarded. Wrappers that leave
the frame are made anew behind the graph.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import as_seen, needs_gradient
from braze.capture.calls.torch_function import classes_in_order, note_overrides
from braze.capture.frames.control_signals import BreakRequested
from braze.compat import private_names as private
from braze.compat.torch.dispatcher import has_custom_dispatch, make_wrapper
from braze.tracing.wrapper_fake import new_wrapper

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# What makes a class answer for its sizes, device or layout itself.
_POLICIES = (
    "dispatch_sizes_strides_policy",
    "dispatch_device",
    "dispatch_layout",
    "_extra_dispatch_keys",
)


def intercept(
    interpreter: Interpreter, op: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """What an operator gives below autograd whose arguments have wrappers among them: what the
    first of their classes says that does not answer NotImplemented."""
    args, kwargs = _seen(args), _seen(kwargs)
    if torch.is_grad_enabled() and needs_gradient((args, kwargs)):
        if not interpreter.differentiates:
            detail = f"the gradient of {op} of a tensor subclass"
            raise BreakRequested("unsupported-tensor", detail)
        with torch.no_grad():  # the node of autograd is outside
            return intercept(interpreter, op, args, kwargs)
    classes = classes_in_order(interpreter, (args, kwargs), has_custom_dispatch)
    for cls in classes:
        method = interpreter.guard_context.lookup(cls, "__torch_dispatch__")
        if type(method) is not classmethod or type(method.__func__) is not types.FunctionType:
            raise BreakRequested("unsupported-tensor", f"{cls.__qualname__}.__torch_dispatch__")
        function = method.__func__
        interpreter.guard_context.source_of_function(function)
        result = interpreter.call_raising(function, cls, op, tuple(classes), args, kwargs)
        if result is not NotImplemented:
            return result
    raise BreakRequested("unsupported-tensor", f"{op}, which no tensor subclass implements")


def _seen(value: Any) -> Any:
    """Arguments of an operator as Python code gets them from the dispatcher."""
    cls = type(value)
    if cls is list or cls is tuple:
        return cls([_seen(item) for item in value])
    if cls is dict:
        return {key: _seen(item) for key, item in value.items()}
    return as_seen(value)


@answers(make_wrapper)
def make_wrapper_subclass(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """`Tensor._make_wrapper_subclass(cls, size, ...)`."""
    cls, *rest = args
    is_class = isinstance(cls, type) and issubclass(cls, torch.Tensor) and has_custom_dispatch(cls)
    guard_context = interpreter.guard_context
    if not is_class or id(cls) in guard_context.made_classes or guard_context.intercepts is None:
        raise BreakRequested("unsupported-tensor", f"making a {cls!r}")
    if any(kwargs.get(name) for name in _POLICIES):
        detail = f"making a {cls.__qualname__}, which answers for its sizes, device or layout"
        raise BreakRequested("unsupported-tensor", detail)
    fake = interpreter.native(new_wrapper, cls, None, *rest, **kwargs)
    guard_context.keep(fake)
    guard_context.source_of_function(cls)
    interpreter.tracer.intercept = guard_context.intercepts
    note_overrides(guard_context, cls)
    return fake


@answers(private.correct_aliasing)
def correct_aliasing(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> object:
    """What an operator on wrappers gives: of one that writes, the arguments that it wrote to. That
    the memory of a view is its base's is a fact of what wrappers hold."""
    function, given, keywords, out = args if not kwargs else _named(*args, **kwargs)
    returns = function._schema.returns
    written = [r.alias_info is not None and r.alias_info.is_write for r in returns]
    if not any(written):
        return out
    if len(returns) > 1:
        raise BreakRequested("unsupported-tensor", f"{function} on tensor subclasses")
    names = returns[0].alias_info.before_set
    for index, argument in enumerate(function._schema.arguments):
        info = argument.alias_info
        if info is not None and info.is_write and info.before_set == names:
            return given[index] if index < len(given) else keywords[argument.name]
    raise BreakRequested("unsupported-tensor", f"{function} on tensor subclasses")


def _named(
    func: object, args: object, kwargs: object, out: object
) -> tuple[object, object, object, object]:
    return func, args, kwargs, out


def rebuilt_wrapper(cls: type, leaf: bool, *args: object, **kwargs: object) -> torch.Tensor:
    """The tensor that `Tensor._make_wrapper_subclass(cls, *args, **kwargs)` made in the frame."""
    made: torch.Tensor = make_wrapper(cls, *args, **{**kwargs, "requires_grad": leaf})
    return made
