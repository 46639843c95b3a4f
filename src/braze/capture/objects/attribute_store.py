"""Writing and deleting attributes as Python does it: the class's `__setattr__` if it has one of its
own, data descriptors on the MRO, the instance dict."""

from __future__ import annotations

import _thread
import types
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.objects.attribute_load import (
    instance_dict,
    instance_entry,
    is_of_items,
    load_slot,
    raise_missing,
    referent,
    set_instance_entry,
)
from braze.capture.objects.module_attributes import store_module_attribute
from braze.capture.state.guard_context import TENSORS
from braze.capture.state.side_effects import DELETED
from braze.capture.state.special_methods import check_given_up
from braze.capture.state.tensor_attributes import delete_tensor_attribute
from braze.capture.tensors.attributes import store_tensor_attribute
from braze.ir.captured.guard import ABSENT
from braze.ir.captured.source import ObjectSource
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.capture.state.guard_context import GuardContext


def store_attribute(interpreter: Interpreter, owner: Any, name: str, value: object) -> None:
    """`owner.name = value`."""
    guard_context = interpreter.guard_context
    owner = _number(guard_context, owner)
    cls = type(owner)
    if id(owner) in guard_context.proxies:
        store_attribute(interpreter, referent(guard_context, owner), name, value)
        return
    if cls in TENSORS:
        store_tensor_attribute(interpreter, owner, name, value)
        return
    if cls is types.ModuleType:
        interpreter.side_effects.write(vars(owner), name, value)
        return
    method = guard_context.lookup(cls, "__setattr__")
    if method is torch.nn.Module.__setattr__ and store_module_attribute(
        interpreter, owner, name, value
    ):
        return
    if type(method) is types.FunctionType or is_of_items(method):
        interpreter.call(method, owner, name, value)
        return
    store_generic(interpreter, owner, name, value)


def _number(guard_context: GuardContext, owner: object) -> Any:
    """What refuses attributes as the program's number does, where a symbol stands for it."""
    cls = guard_context.type_of(owner)
    return cls() if cls in _NUMBERS and type(owner) is not cls else owner


_NUMBERS = frozenset({int, float, bool})


def store_generic(interpreter: Interpreter, owner: Any, name: str, value: object) -> None:
    """`object.__setattr__`."""
    guard_context = interpreter.guard_context
    if type(owner) in TENSORS:
        store_tensor_attribute(interpreter, owner, name, value)
        return
    owner = _number(guard_context, owner)
    if issubclass(type(owner), type):
        _change_class(interpreter, owner, name, value)
        return
    meta = guard_context.lookup(type(owner), name)
    kind = type(meta)
    if kind is property:
        if meta.fset is None:
            interpreter.native(object.__setattr__, owner, name, value)
            return
        guard_context.source_of_function(meta.fset)
        interpreter.call(meta.fset, owner, value)
        return
    if kind is types.MemberDescriptorType or kind is types.GetSetDescriptorType:
        if name == "__dict__" and (
            id(owner) in guard_context.known or id(value) in guard_context.known
        ):
            detail = f"another __dict__ for a {type(owner).__qualname__}"
            raise BreakRequested("unsupported-attribute", detail)
        if id(owner) in guard_context.known:
            if kind is types.MemberDescriptorType:
                _check_slot(meta, owner)
            interpreter.side_effects.slots[(id(owner), name)] = (owner, value)
            if name == "__cause__" and issubclass(type(owner), BaseException):
                suppressed = (id(owner), "__suppress_context__")
                interpreter.side_effects.slots[suppressed] = (owner, True)
        else:
            interpreter.native(meta.__set__, owner, value)
        return
    setter = guard_context.lookup(kind, "__set__") if meta is not ABSENT else ABSENT
    if type(setter) is types.FunctionType:
        guard_context.track(meta, ObjectSource(f"{type(owner).__qualname__}.{name}", meta))
        interpreter.call(setter, meta, owner, value)
        return
    if setter is ABSENT and _is_other_half(guard_context, meta, kind, "__delete__"):
        raise ProgramRaised(AttributeError("__set__"))
    if issubclass(type(owner), _thread._local) and id(owner) in guard_context.known:
        interpreter.side_effects.slots[(id(owner), name)] = (owner, value)  # in C, for each thread
        return
    set_instance_entry(interpreter, owner, name, value)


def _change_class(interpreter: Interpreter, owner: type, name: str, value: object) -> None:
    """`Class.name = value`, DELETED: `del Class.name`, of a class made in the frame."""
    if id(owner) not in interpreter.guard_context.made_classes:
        raise BreakRequested("unsupported-attribute", f"writing {owner.__qualname__}.{name}")
    setter = interpreter.guard_context.lookup(
        type(interpreter.guard_context.lookup(type(owner), name)), "__set__"
    )
    if type(setter) is types.FunctionType:
        raise BreakRequested("unsupported-attribute", f"writing {owner.__qualname__}.{name}")
    if value is DELETED:
        interpreter.native(type.__delattr__, owner, name)
    else:
        interpreter.native(type.__setattr__, owner, name, value)


def delete_attribute(interpreter: Interpreter, owner: object, name: str) -> None:
    """`del owner.name`."""
    guard_context = interpreter.guard_context
    owner = _number(guard_context, owner)
    if id(owner) in guard_context.proxies:
        delete_attribute(interpreter, referent(guard_context, owner), name)
        return
    if type(owner) is TracedTensor:
        delete_tensor_attribute(interpreter, owner, name)
        return
    method = guard_context.lookup(type(owner), "__delattr__")
    if type(method) is types.FunctionType or is_of_items(method):
        interpreter.call(method, owner, name)
        return
    delete_generic(interpreter, owner, name)


def _is_other_half(guard_context: GuardContext, meta: object, kind: type, name: str) -> bool:
    """Whether a descriptor of the program's has the one of `__set__` and `__delete__` that is not
    asked for: both are one slot."""
    return (
        type(guard_context.lookup(kind, name)) is types.FunctionType
        if meta is not ABSENT
        else False
    )


def delete_generic(interpreter: Interpreter, owner: Any, name: str) -> None:
    """`object.__delattr__`."""
    guard_context = interpreter.guard_context
    if type(owner) is TracedTensor:
        delete_tensor_attribute(interpreter, owner, name)
        return
    owner = _number(guard_context, owner)
    if issubclass(type(owner), type):
        _change_class(interpreter, owner, name, DELETED)
        return
    meta = guard_context.lookup(type(owner), name)
    kind = type(meta)
    if kind is property and meta.fdel is not None:
        guard_context.source_of_function(meta.fdel)
        interpreter.call(meta.fdel, owner)
        return
    deleter = guard_context.lookup(kind, "__delete__") if meta is not ABSENT else ABSENT
    if type(deleter) is types.FunctionType:
        guard_context.track(meta, ObjectSource(f"{type(owner).__qualname__}.{name}", meta))
        interpreter.call(deleter, meta, owner)
        return
    if deleter is ABSENT and _is_other_half(guard_context, meta, kind, "__set__"):
        raise ProgramRaised(AttributeError("__delete__"))
    if (
        id(owner) not in guard_context.known or kind is property
    ):  # a property without a deleter raises
        interpreter.native(object.__delattr__, owner, name)
        return
    if kind is types.MemberDescriptorType or kind is types.GetSetDescriptorType:
        _delete_slot(interpreter, meta, owner, name)
        return
    if instance_entry(interpreter, owner, name) is ABSENT:
        raise_missing(interpreter, owner, name)
    space = instance_dict(owner)
    assert space is not None  # it has the entry
    interpreter.side_effects.write(space, name, DELETED, owner)


# Attributes of builtin objects that are None when they are deleted, as when None is written.
_NONE_WHEN_DELETED = frozenset({types.FunctionType.__defaults__, types.FunctionType.__kwdefaults__})


def _delete_slot(interpreter: Interpreter, slot: Any, owner: object, name: str) -> None:
    """`del owner.name` of what a known object keeps outside of its dict. A slot of a class of the
    program's is read first: it must hold something. What C classes do is their own."""
    if slot in _NONE_WHEN_DELETED:
        interpreter.side_effects.slots[(id(owner), name)] = (owner, None)
        return
    if "__slots__" not in vars(slot.__objclass__):
        raise BreakRequested("unsupported-attribute", f"del {type(owner).__qualname__}.{name}")
    try:
        load_slot(interpreter, slot, owner, type(owner), name)
    except ProgramRaised as raised:
        if isinstance(raised.exception, AttributeError):
            raise ProgramRaised(AttributeError(name)) from None
        raise
    _check_slot(slot, owner)
    interpreter.side_effects.slots[(id(owner), name)] = (owner, DELETED)


def _check_slot(slot: Any, owner: Any) -> None:
    """Break before a slot gives up an object whose end runs Python code."""
    with suppress(AttributeError):  # it may be empty
        check_given_up((slot.__get__(owner, type(owner)),))
