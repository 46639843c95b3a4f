"""Attributes of wrapper subclasses: metadata from the fake, all else as of any object of the
program's. An input's attributes are guarded where they are read, the tensors among them as inputs
of the graph.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.torch_calls import leaf_call
from braze.capture.calls.torch_function import call_overriding
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.ir.captured.guard import ABSENT, GuardKind
from braze.ir.captured.source import AttributeSource
from braze.tracing.fake_tensor_queries import QUESTIONS, Kept
from braze.tracing.wrapper_fake import WrapperFake

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_METHODS = (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
# Attributes of tensors that are operators.
_OPERATORS = frozenset({"T", "mT", "H", "mH", "real", "imag"})


def load_wrapper_attribute(interpreter: Interpreter, tensor: WrapperFake, name: str) -> Any:
    """`tensor.name`, in Python's order: data descriptors, instance, class, `__getattr__`."""
    guard_context, cls = interpreter.guard_context, tensor.outer_class
    if name == "__class__":
        return cls
    if name == "__dict__":
        raise BreakRequested("unsupported-tensor", "Tensor.__dict__")
    meta = guard_context.lookup(cls, name)
    kind = type(meta)
    if kind is types.GetSetDescriptorType:
        return _of_tensor(interpreter, tensor, name, meta)
    if kind is property:
        guard_context.source_of_function(meta)
        return interpreter.call(meta.fget, tensor)
    is_slot = kind is types.MemberDescriptorType
    if is_slot or not hasattr(kind, "__set__"):
        value = _of_instance(interpreter, tensor, name, meta if is_slot else None)
        if value is not ABSENT:
            return value
    if meta is ABSENT or is_slot:
        return _missing(interpreter, tensor, name)
    if kind in _METHODS:
        guard_context.source_of_function(meta)
        return types.MethodType(meta, tensor)
    if kind is classmethod or kind is staticmethod:
        guard_context.source_of_function(meta.__func__)
        return meta.__func__ if kind is staticmethod else types.MethodType(meta.__func__, cls)
    if hasattr(kind, "__get__"):
        raise BreakRequested("unsupported-attribute", f"{cls.__qualname__}.{name}")
    return guard_context.class_value(cls, name, meta)


def _of_tensor(interpreter: Interpreter, tensor: WrapperFake, name: str, meta: Any) -> object:
    """What every tensor has under a name."""
    if name in _OPERATORS:
        return leaf_call(interpreter, meta.__get__, (tensor,), {})
    found = call_overriding(interpreter, meta.__get__, (tensor,), {})
    if found is not None:
        return found[0]
    if QUESTIONS.get(name) is Kept.METADATA:
        return interpreter.native(getattr, tensor, name)
    if name == "grad":
        return _gradient(interpreter, tensor)
    if name == "grad_fn" and tensor.is_leaf:
        return None
    detail = f"Tensor.{name} of a {tensor.outer_class.__qualname__}"
    raise BreakRequested("unsupported-tensor", detail)


def _gradient(interpreter: Interpreter, tensor: WrapperFake) -> object:
    real, guard_context = tensor.real, interpreter.guard_context
    if real is None:
        return None
    key = (id(tensor), "grad")
    if key not in guard_context.reads:
        source = AttributeSource(guard_context.known[id(tensor)][1], "grad")
        guard_context.reads[key] = guard_context.wrap_value(real.grad, source)
    return guard_context.reads[key]


def _of_instance(interpreter: Interpreter, tensor: WrapperFake, name: str, slot: Any) -> object:
    """What the program set on the tensor, in its dict or in a slot of its class; or ABSENT."""
    if name in tensor.attributes:
        return tensor.attributes[name]
    real, guard_context = tensor.real, interpreter.guard_context
    if real is None:
        return ABSENT
    key = (id(tensor), name)
    if key in guard_context.reads:
        return guard_context.reads[key]
    source = guard_context.known[id(tensor)][1]
    space = object.__getattribute__(real, "__dict__")
    try:
        value = space.get(name, ABSENT) if slot is None else slot.__get__(real)
    except AttributeError:
        guard_context.guard(source, GuardKind.HAS_ATTRIBUTE, (name, False))
        return ABSENT
    if value is ABSENT:
        guard_context.guard_lacks_attribute(space, real, name)
        return ABSENT
    guard_context.reads[key] = found = guard_context.wrap_value(
        value, AttributeSource(source, name)
    )
    return found


def _missing(interpreter: Interpreter, tensor: WrapperFake, name: str) -> object:
    cls = tensor.outer_class
    fallback = interpreter.guard_context.lookup(cls, "__getattr__")
    if type(fallback) is types.FunctionType:
        return interpreter.call(fallback, tensor, name)
    raise ProgramRaised(AttributeError(f"{cls.__name__!r} object has no attribute {name!r}"))


def store_wrapper_attribute(
    interpreter: Interpreter, tensor: WrapperFake, name: str, value: object
) -> None:
    """`tensor.name = value`, of a tensor that the program made in this frame."""
    if name == "requires_grad":
        interpreter.call(torch.Tensor.requires_grad_, tensor, value)
        return
    meta = interpreter.guard_context.lookup(tensor.outer_class, name)
    is_slot = type(meta) is types.MemberDescriptorType
    setter = interpreter.guard_context.lookup(tensor.outer_class, "__setattr__")
    is_plain = is_slot or not hasattr(type(meta), "__set__")
    if tensor.real is not None or type(setter) is types.FunctionType or not is_plain:
        detail = f"writing {tensor.outer_class.__qualname__}.{name}"
        raise BreakRequested("unsupported-attribute", detail)
    tensor.attributes[name] = value
