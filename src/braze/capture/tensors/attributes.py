"""Attributes of tensors: metadata from the fake tensor, the rest from the real tensor, guarded."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import ask_view, check_original, leaf_call, traced
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.guard_context import CONSTANTS
from braze.capture.state.tensor_attributes import (
    dict_of_tensor,
    has_own_attribute,
    load_own_attribute,
    store_own_attribute,
)
from braze.capture.tensors.wrapper_attributes import (
    load_wrapper_attribute,
    store_wrapper_attribute,
)
from braze.capture.training.checkpointing import check_number_of_result
from braze.capture.training.data_assignment import assign_data, data_of
from braze.capture.training.zero_grad import note_dropped
from braze.compat.torch.autograd_engine import refuses_changed_memory
from braze.ir.captured.guard import ABSENT
from braze.ir.captured.source import AttributeSource
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.fake_tensor_queries import QUESTIONS, Kept, unknown_names
from braze.tracing.symbolic.speculative_copies import CopySeen, is_free, is_lazy
from braze.tracing.wrapper_fake import WrapperFake

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# What a program gets at the attribute, where the fake tensor would refuse the call: the reason
# names
# the line that reads it.
_ANSWERED = frozenset({"numpy"})  # by a handler of its own
FORBIDDEN = (frozenset(unknown_names(torch.Tensor)) | {"grad_fn", "__array__"}) - _ANSWERED


def load_tensor_attribute(interpreter: Interpreter, tensor: Any, name: str) -> Any:
    """`tensor.name`."""
    if type(tensor) is WrapperFake:
        return load_wrapper_attribute(interpreter, tensor, name)
    guard_context = interpreter.guard_context
    if name in _ANSWERED:
        seen = (guard_context.classes_of.get(id(tensor), torch.Tensor), name)
        if seen not in guard_context.inherited:
            check_original(guard_context, name, tensor)
    if name in _ATTRIBUTES:
        return interpreter.native(getattr, tensor, name)
    if name in ("__class__", "__dict__"):
        return _class_or_dict(interpreter, tensor, name)
    real = interpreter.tracer.real_of(tensor)
    if name == "grad":
        return _gradient(interpreter, tensor, real)
    cls = interpreter.guard_context.type_of(tensor)
    if name == "grad_fn" and interpreter.native(getattr, tensor, "is_leaf"):  # may raise
        return None
    if name in FORBIDDEN:
        raise BreakRequested("unsupported-tensor", f"Tensor.{name}")
    if name == "_version":
        return _version(interpreter, tensor)
    if name in ("output_nr", "retains_grad"):
        return _of_history(interpreter, tensor, name)
    if name == "_base":
        _check_base(interpreter, tensor)
    if name == "data" and _refuses_changes(interpreter, tensor):
        raise BreakRequested("unsupported-tensor", "Tensor.data of one of several views")
    meta = interpreter.guard_context.lookup(cls, name)
    if meta is ABSENT:
        return load_own_attribute(interpreter, tensor, name)
    if name not in _TENSOR_NAMES:
        return _subclass_attribute(interpreter, tensor, cls, name)
    if not hasattr(type(meta), "__set__") and has_own_attribute(interpreter, tensor, name):
        return load_own_attribute(interpreter, tensor, name)
    if type(meta) in (types.MethodDescriptorType, types.FunctionType):
        return types.MethodType(meta, tensor)
    if type(meta) is types.GetSetDescriptorType:
        if name == "data":
            return data_of(interpreter, tensor, meta)
        return leaf_call(interpreter, meta.__get__, (tensor,), {})
    if issubclass(type(meta), property):
        return leaf_call(interpreter, meta.fget, (tensor,), {})
    if hasattr(type(meta), "__get__"):
        raise BreakRequested("unsupported-tensor", f"Tensor.{name}")
    return interpreter.guard_context.class_value(cls, name, meta)


def _version(interpreter: Interpreter, tensor: Any) -> object:
    """How often the memory was written to. Of an input that is another number at each call, which
    the graph's own writes change before a result could be made of it."""
    if interpreter.tracer.owner_of(tensor) is not None or tensor.place.given_at >= 0:
        raise BreakRequested("unsupported-tensor", "Tensor._version of an input")
    if is_free(tensor) or is_lazy(tensor):
        raise CopySeen
    return interpreter.native(getattr, tensor, "_version")


def _of_history(interpreter: Interpreter, tensor: Any, name: str) -> object:
    """What autograd knows of a tensor that an operation made; nothing of a leaf. Which result of
    its operation a tensor is follows from the program, but for an input's own history: behind a
    break it would be counted among the results of a graph."""
    needs_gradients = interpreter.native(getattr, tensor, "requires_grad")
    is_known = name == "output_nr" and interpreter.tracer.real_of(tensor) is None
    if needs_gradients and is_known:
        check_number_of_result(interpreter, tensor)
    if needs_gradients and not is_known and not interpreter.native(getattr, tensor, "is_leaf"):
        raise BreakRequested("unsupported-tensor", f"Tensor.{name} of what has a history")
    return interpreter.native(getattr, tensor, name)


def _check_base(interpreter: Interpreter, tensor: object) -> None:
    """Break where eager has another base than the fake tensor."""
    _check_seen_as_made(interpreter, tensor, "Tensor._base")
    if _is_of_a_view(interpreter, tensor):
        raise BreakRequested("unsupported-tensor", "Tensor._base of a view")


def _check_seen_as_made(interpreter: Interpreter, tensor: Any, what: str) -> None:
    """Break where eager makes a tensor as a view, and the fake tensor is none: with a conjugate or
    negative bit, or of a subclass, whose results `__torch_function__` makes views of plain ones."""
    if is_lazy(tensor):
        raise CopySeen
    is_plain = interpreter.guard_context.type_of(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not is_plain and interpreter.tracer.real_of(tensor) is None:
        raise BreakRequested("unsupported-tensor", f"{what} of what was made of a subclass")


def _is_of_a_view(interpreter: Interpreter, tensor: Any) -> bool:
    """Whether a tensor's memory is that of an input which is a view itself. Guarded."""
    real = interpreter.tracer.owner_of(tensor)
    if real is None:
        return False
    own = interpreter.tracer.real_of(tensor)
    if own is not None and own is not real:
        raise BreakRequested("unsupported-tensor", "whether an input that shares memory is a view")
    ask_view(tensor)
    return bool(real._is_view())


@answers(torch.Tensor._is_view)
def is_view(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """An input's fake tensor is none, whatever the input is."""
    (tensor,) = args
    if type(tensor) is TracedTensor:
        _check_seen_as_made(interpreter, tensor, "Tensor._is_view()")
        if interpreter.tracer.real_of(tensor) is not None:
            return _is_of_a_view(interpreter, tensor)
    return leaf_call(interpreter, torch.Tensor._is_view, args, kwargs)


@answers(torch.Tensor.__hash__)
def hash_of_tensor(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A fake tensor has another address than its tensor."""
    return interpreter.call(hash, *args)


_TENSOR_NAMES = frozenset(dir(torch.Tensor))
_ATTRIBUTES = frozenset(
    {
        name
        for name, kept in QUESTIONS.items()
        if kept is Kept.METADATA and not callable(getattr(torch.Tensor, name, len))
    }
)


# Without a look at what the class has under the name.
_ANSWERED = _ATTRIBUTES | {"grad", "grad_fn", "_version", "output_nr", "retains_grad", "_base"}


def _refuses_changes(interpreter: Interpreter, tensor: Any) -> bool:
    """A write through `x.data` is none to `x` for autograd, one through `x.detach()` is. In a graph
    they are the same, so they are told apart where `x` is a view that cannot be used any more after
    such a write."""
    real = interpreter.tracer.owner_of(tensor)
    if real is None or not real.requires_grad:
        return False
    ask_view(tensor)
    return refuses_changed_memory(real)


def _subclass_attribute(interpreter: Interpreter, tensor: object, cls: type, name: str) -> Any:
    """What a subclass of Tensor defines beside what every tensor has."""
    meta = interpreter.guard_context.lookup(cls, name)
    kind = type(meta)
    if kind is property:
        interpreter.guard_context.source_of_function(meta)
        return interpreter.call(meta.fget, tensor)
    if has_own_attribute(interpreter, tensor, name):
        return load_own_attribute(interpreter, tensor, name)
    if kind is types.FunctionType:
        interpreter.guard_context.source_of_function(meta)
        return types.MethodType(meta, tensor)
    if kind in CONSTANTS:
        return meta
    if kind is classmethod or kind is staticmethod:
        interpreter.guard_context.source_of_function(meta.__func__)
        return meta.__func__ if kind is staticmethod else types.MethodType(meta.__func__, cls)
    raise BreakRequested("unsupported-attribute", f"{cls.__qualname__}.{name}")


def _class_or_dict(interpreter: Interpreter, tensor: object, name: str) -> object:
    if name == "__class__":
        return interpreter.guard_context.type_of(tensor)
    return dict_of_tensor(interpreter, tensor)


_GRAD: Any = torch.Tensor.grad


def _gradient(interpreter: Interpreter, tensor: object, real: torch.Tensor | None) -> object:
    guard_context = interpreter.guard_context
    if real is None:
        if id(tensor) in interpreter.retaining:
            return traced(_GRAD.__get__, (tensor,), {})
        return interpreter.new_gradients.get(id(tensor))
    written = interpreter.side_effects.slots.get((id(tensor), "grad"))
    if written is not None:
        return written[1]
    key = (id(tensor), "grad")
    if key not in guard_context.reads:
        source = AttributeSource(guard_context.known[id(tensor)][1], "grad")
        guard_context.reads[key] = guard_context.wrap_value(real.grad, source)
    return guard_context.reads[key]


def store_tensor_attribute(
    interpreter: Interpreter, tensor: object, name: str, value: object
) -> None:
    """`tensor.name = value`: what the class keeps (`grad`, `data`), or an attribute of its own."""
    if type(tensor) is WrapperFake:
        store_wrapper_attribute(interpreter, tensor, name, value)
        return
    if name == "requires_grad":
        interpreter.call(torch.Tensor.requires_grad_, tensor, value)
        return
    if name == "data":
        if type(value) is TracedTensor and _refuses_changes(interpreter, value):
            raise BreakRequested("unsupported-tensor", "Tensor.data of one of several views")
        assign_data(interpreter, tensor, value)
        return
    if name == "grad" and id(tensor) in interpreter.guard_context.new_leaves:
        _check_gradient(tensor, value)
        interpreter.new_gradients[id(tensor)] = value
        return
    if name == "grad" and interpreter.guard_context.source_of(tensor) is not None:
        _check_gradient(tensor, value)
        note_dropped(interpreter, tensor, value)
        interpreter.side_effects.slots[(id(tensor), "grad")] = (tensor, value)
        return
    store_own_attribute(interpreter, tensor, name, value)


def _check_gradient(tensor: object, value: object) -> None:
    """Raise what eager raises for a gradient of another size or type: it is assigned behind the
    graph, which would have written to others by then."""
    if value is None:
        return
    slot: Any = torch.Tensor.grad
    traced(slot.__set__, (tensor, value), {})
    slot.__set__(tensor, None)
