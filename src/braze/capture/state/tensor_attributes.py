"""Attributes that a program hangs on tensors (`param.no_decay = True`, `y.scale = s`).

Of an input they are entries of its `__dict__`, read under a guard and written as those of any
object from outside. A tensor that the frame computes has them on its fake tensor, and the result
that it becomes is given them; with a temporary they end.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.state.side_effects import DELETED
from braze.ir.captured.guard import ABSENT
from braze.ir.captured.source import AttributeSource
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_TENSOR_NAMES = frozenset(dir(torch.Tensor))
# PyTorch's C++ code and metaclasses read the former; fake tensors have the latter for themselves.
_READ_ELSEWHERE = {"_is_param", "_is_buffer"} | (set(dir(TracedTensor)) - _TENSOR_NAMES)


def load_own_attribute(interpreter: Interpreter, tensor: object, name: str) -> object:
    """`tensor.name`, of which the class knows nothing, or which hides its class's."""
    found = _own_entry(interpreter, tensor, name)
    if found is not ABSENT:
        return found
    cls = interpreter.guard_context.type_of(tensor)
    fallback = interpreter.guard_context.lookup(cls, "__getattr__")
    if type(fallback) is types.FunctionType:
        return interpreter.call(fallback, tensor, name)
    raise _missing(interpreter, tensor, name)


def has_own_attribute(interpreter: Interpreter, tensor: Any, name: str) -> bool:
    """Whether a tensor itself has an attribute that hides its class's. That a tensor of PyTorch's
    own classes has none is not guarded: every method of every parameter would cost a call."""
    real = interpreter.tracer.real_of(tensor)
    if real is None:
        return name in computed_attributes(tensor)
    guard_context, space = interpreter.guard_context, real.__dict__
    written = interpreter.side_effects.written(space, name)
    if written is not ABSENT:
        return written is not DELETED
    if name in space:
        return True
    if type(real) is not torch.Tensor and type(real) is not torch.nn.Parameter:
        guard_context.guard_lacks_attribute(space, real, name)
    return False


def store_own_attribute(interpreter: Interpreter, tensor: Any, name: str, value: Any) -> None:
    """`tensor.name = value`, of a name that the class has nothing to say about."""
    space = _written_dict(interpreter, tensor, name, "writing")
    if space is vars(tensor):
        space[name] = value
    else:
        interpreter.side_effects.write(space, name, value, tensor)


def delete_tensor_attribute(interpreter: Interpreter, tensor: Any, name: str) -> None:
    """`del tensor.name`."""
    space = _written_dict(interpreter, tensor, name, "deleting")
    if _own_entry(interpreter, tensor, name) is ABSENT:
        raise _missing(interpreter, tensor, name)
    if space is vars(tensor):
        del space[name]
    else:
        interpreter.side_effects.write(space, name, DELETED, tensor)


def dict_of_tensor(interpreter: Interpreter, tensor: Any) -> dict[str, object]:
    """`tensor.__dict__`, of an input. That of another tensor would be another's in the result."""
    real, guard_context = interpreter.tracer.real_of(tensor), interpreter.guard_context
    if real is None or id(tensor) not in guard_context.known:
        raise BreakRequested("unsupported-tensor", "Tensor.__dict__ of a computed tensor")
    source = guard_context.instance_dict_source(tensor)
    found: dict[str, Any] = guard_context.track(real.__dict__, source)
    return found


def computed_attributes(tensor: object) -> dict[str, object]:
    """The attributes that the program gave to a computed tensor; parameters made in the frame are
    marked as such in their fake tensors."""
    held = vars(tensor)
    return {name: held[name] for name in held if name != "_is_param"} if held else {}


def was_given_attributes(interpreter: Interpreter, tensor: Any) -> bool:
    """Whether the frame has set an attribute of a tensor."""
    real = interpreter.tracer.real_of(tensor)
    if real is None:
        return bool(computed_attributes(tensor))
    return id(real.__dict__) in interpreter.side_effects.touched


def has_attributes(interpreter: Interpreter, tensor: object) -> bool:
    """Whether a tensor has any."""
    if id(tensor) not in interpreter.guard_context.known:
        return bool(computed_attributes(tensor))
    return bool(interpreter.side_effects.contents(dict_of_tensor(interpreter, tensor)))


# --- private ---------------------------------------------------------------------------------


def _own_entry(interpreter: Interpreter, tensor: Any, name: str) -> object:
    """The entry of a tensor's `__dict__`, guarded for an input; or ABSENT."""
    guard_context = interpreter.guard_context
    real = interpreter.tracer.real_of(tensor)
    if real is None:
        return computed_attributes(tensor).get(name, ABSENT)
    space = real.__dict__
    written = interpreter.side_effects.written(space, name)
    if written is not ABSENT:
        return ABSENT if written is DELETED else written
    key = (id(tensor), name)
    if key in guard_context.reads:
        return guard_context.reads[key]
    if name not in space:
        guard_context.guard_lacks_attribute(space, real, name)
        return ABSENT
    source = AttributeSource(guard_context.known[id(tensor)][1], name)
    guard_context.reads[key] = guard_context.wrap_value(space[name], source)
    return guard_context.reads[key]


def _written_dict(interpreter: Interpreter, tensor: Any, name: str, what: str) -> dict[str, object]:
    """The dict that a write goes to: an input's, or the fake tensor's of a computed one. Breaks
    where something else than the dict answers for the name, or where a trace of its own, whose
    tensors are not the program's, is being made."""
    guard_context = interpreter.guard_context
    cls = guard_context.type_of(tensor)
    by_class = guard_context.lookup(cls, name) is not ABSENT and (
        name in _TENSOR_NAMES or hasattr(type(guard_context.lookup(cls, name)), "__set__")
    )
    hooks = [guard_context.lookup(cls, hook) for hook in ("__setattr__", "__delattr__")]
    is_hooked = any(type(hook) is types.FunctionType for hook in hooks)
    if by_class or is_hooked or name in _READ_ELSEWHERE or name.startswith(("__", "_dynamo_")):
        raise BreakRequested("unsupported-attribute", f"{what} Tensor.{name}")
    real = interpreter.tracer.real_of(tensor)
    is_known = id(tensor) in guard_context.known
    if is_known != (real is not None):
        raise BreakRequested("unsupported-attribute", f"{what} Tensor.{name} of such a tensor")
    if real is not None:
        return real.__dict__
    if interpreter.transforms or interpreter.tracer.touched is not None:
        raise BreakRequested("unsupported-attribute", f"{what} Tensor.{name} in a transform")
    return vars(tensor)


def _missing(interpreter: Interpreter, tensor: object, name: str) -> ProgramRaised:
    cls = interpreter.guard_context.type_of(tensor)
    return ProgramRaised(AttributeError(f"{cls.__name__!r} object has no attribute {name!r}"))
