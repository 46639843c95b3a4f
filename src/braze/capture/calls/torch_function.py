"""Arguments of torch calls that are no tensors and answer the call themselves.

PyTorch asks each argument for `__torch_function__`: its class, a class that is an argument itself,
and the instance. Such a call is the program's Python code, so the graph breaks there; of others it
is guarded that they have none.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.guard_context import CONSTANTS, TENSORS
from braze.compat.python.iterator_state import base_items
from braze.compat.torch.dispatcher import TorchFunction, torch_function_of
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_NAME = "__torch_function__"
_PLAIN = CONSTANTS | TENSORS
# The class of torch.HalfTensor and the like, whose `__torch_function__` is torch.Tensor's: it makes
# the call, and its result is of that type already. So does torch.Tensor, an argument of `__new__`.
_LEGACY_TYPE = type(torch.FloatTensor)
# PyTorch does not ask these (`is_basic_python_type`).
_NEVER_ASKED = frozenset(
    {dict, set, slice, range, types.ModuleType, type(Ellipsis), type(NotImplemented)}
)


def check_overrides(interpreter: Interpreter, name: str, values: Iterable[Any]) -> None:
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


def _is_in_dict(interpreter: Interpreter, value: Any) -> bool:
    try:
        space = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return False
    if _NAME in space or interpreter.side_effects.written(space, _NAME) is not ABSENT:
        return True
    if id(value) in interpreter.guard_context.known:
        interpreter.guard_context.guard_lacks_attribute(space, value, _NAME)
    return False
