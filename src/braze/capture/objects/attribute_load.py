"""Attribute lookup as Python does it, over objects from outside and fresh ones.

Order: the class's `__getattribute__` if it has one of its own, data descriptors on the MRO, the
instance dict, other descriptors and values on the MRO, `__getattr__`.
"""

from __future__ import annotations

import _thread
import collections
import datetime
import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from braze.capture.arrays.fake_array import FakeArray
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.frames.generators import InlinedGenerator
from braze.capture.objects.module_attributes import module_entry
from braze.capture.objects.python_modules import load_module_attribute
from braze.capture.state.guard_context import (
    CONSTANTS,
    NUMBERS,
    TENSORS,
    GuardContext,
    attribute_key,
    raw_lookup,
)
from braze.capture.state.reentrant_calls import code_of
from braze.capture.state.side_effects import DELETED
from braze.capture.state.tensor_attributes import has_own_attribute
from braze.capture.tensors.attributes import FORBIDDEN, load_tensor_attribute
from braze.capture.tensors.super_proxy import SuperOfTensor
from braze.capture.training.saved_tensors import call_of_getter
from braze.compat.python.stdlib import name_in_errors, name_of_slotted
from braze.ir.captured.frame import NULL
from braze.ir.captured.guard import ABSENT, MRO, GuardKind
from braze.ir.captured.source import AttributeSource, ObjectSource
from braze.tracing.wrapper_fake import WrapperFake

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_C_METHODS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
)
# What LOAD_METHOD leaves unbound, beside its owner.
_PAIRED = frozenset({types.FunctionType, types.MethodDescriptorType})
_OWN = TENSORS | NUMBERS.keys()
_BY_ATTRIBUTE = frozenset({InlinedGenerator, FakeArray, SuperOfTensor, WrapperFake})


def load_attribute(interpreter: Interpreter, owner: Any, name: str) -> Any:
    """`owner.name`; ProgramRaised(AttributeError) if there is none."""
    cls = type(owner)
    guard_context = interpreter.guard_context
    plan = guard_context.plain_attributes.get((cls, name))
    if plan is not None:
        return _load_plain(interpreter, owner, name, plan)
    if cls in TENSORS:
        return load_tensor_attribute(interpreter, owner, name)
    if cls is super or cls is SuperOfTensor:
        return load_super_attribute(interpreter, owner, name)
    if cls in NUMBERS:
        return _load_of_number(interpreter, owner, name)
    if cls in CONSTANTS:
        return interpreter.native(getattr, owner, name)
    if guard_context.proxies and id(owner) in guard_context.proxies:
        return load_attribute(interpreter, referent(guard_context, owner), name)
    if issubclass(type(owner), types.ModuleType):
        return load_module_attribute(interpreter, owner, name)
    if issubclass(type(owner), type):
        return load_class_attribute(interpreter, owner, name)
    getattribute = guard_context.lookup(cls, "__getattribute__")
    if type(getattribute) not in _C_METHODS:
        return _load_by_hook(interpreter, owner, name, getattribute)
    own = getattribute is not object.__getattribute__
    if own or (name == "__traceback__" and issubclass(cls, BaseException)):
        foreign = _is_foreign(guard_context, cls, name, getattribute)
    else:
        foreign = False
    if foreign:
        return _load_foreign(interpreter, owner, name)
    if guard_context.lookup(cls, name) is ABSENT and not made_here(guard_context, cls):
        hook = guard_context.lookup(cls, "__getattr__")
        plan = guard_context.plain_attributes[cls, name] = hook is torch.nn.Module.__getattr__
        return _load_plain(interpreter, owner, name, plan)
    return _load_or_fall_back(interpreter, owner, name)


def _load_of_number(interpreter: Interpreter, owner: object, name: str) -> object:
    """An attribute of a number that stands for several. It has those of the number's class, and no
    others; what its own class does not answer, the number at hand does."""
    kind = NUMBERS[type(owner)]
    if name == "__class__":
        return kind
    held = raw_lookup(kind, name)
    if held is not ABSENT and callable(held) and raw_lookup(type(owner), name) is ABSENT:
        owner = interpreter.native(kind, owner)
    elif held is ABSENT or (not callable(held) and not hasattr(held, "__get__")):
        owner = kind()  # a text, or an error
    return interpreter.native(getattr, owner, name)


def _load_plain(interpreter: Interpreter, owner: object, name: str, of_module: bool) -> object:
    """An attribute of which the class knows nothing. of_module: what the instance dict does not
    have is looked for among a module's parameters, buffers and modules."""
    value = instance_entry(interpreter, owner, name)
    if value is not ABSENT:
        return value
    if of_module:
        value = module_entry(interpreter, owner, name)
        if value is not ABSENT:
            return value
    return _fall_back(interpreter, owner, name)


def made_here(guard_context: GuardContext, cls: type) -> bool:
    """Whether the program made a class, or a base of it, in this frame, and so may change it."""
    made = guard_context.made_classes
    return bool(made) and any(id(base) in made for base in cls.__mro__)


# Classes in C that have a `__getattribute__` of their own, which is `object`'s again.
GENERIC = frozenset(
    {
        cls.__getattribute__
        for cls in (
            *(object, int, float, complex, str, bytes, bytearray, tuple, list, dict, set),
            *(frozenset, BaseException, collections.deque, collections.defaultdict),
            *(types.SimpleNamespace, functools.partial, datetime.date, datetime.datetime),
            collections.OrderedDict,
        )
    }
)


def _is_foreign(guard_context: GuardContext, cls: type, name: str, getattribute: object) -> bool:
    """Whether an attribute is found by C code of the class's own: its lookup, or a descriptor."""
    if getattribute not in GENERIC or name == "__traceback__":
        return True
    kind = type(guard_context.lookup(cls, name))
    is_known = kind in _DESCRIPTORS or kind in _C_METHODS or kind.__flags__ & _HEAP_TYPE
    return not is_known and hasattr(kind, "__get__")


_DESCRIPTORS = frozenset(
    {
        *(types.FunctionType, property, staticmethod, classmethod),
        *(types.MemberDescriptorType, types.GetSetDescriptorType),
    }
)


def load_method(interpreter: Interpreter, owner: object, name: str) -> tuple[object, object]:
    """What LOAD_METHOD pushes: (function, owner) for a plain method, else (attribute, NULL)."""
    cls = type(owner)
    guard_context = interpreter.guard_context
    if cls in _BY_ATTRIBUTE or id(owner) in guard_context.proxies:
        return load_attribute(interpreter, owner, name), NULL
    if (cls, name) in guard_context.plain_attributes:
        return load_attribute(interpreter, owner, name), NULL
    if cls not in _OWN and not issubclass(type(owner), (type, types.ModuleType, super)):
        function = guard_context.lookup(cls, name)
        if type(function) in _PAIRED:
            getattribute = guard_context.lookup(cls, "__getattribute__")
            plain = type(getattribute) in _C_METHODS
            if plain and instance_entry(interpreter, owner, name) is ABSENT:
                if type(function) is types.FunctionType:
                    guard_context.source_of_function(function)
                return function, owner
    elif cls in TENSORS and name not in FORBIDDEN:
        method = guard_context.lookup(
            guard_context.type_of(owner), name
        )  # guarded: a program may replace it
        is_plain = type(method) is types.MethodDescriptorType
        if is_plain and not has_own_attribute(interpreter, owner, name):
            return method, owner
    return load_attribute(interpreter, owner, name), NULL


def referent(guard_context: GuardContext, proxy: object) -> object:
    """What a weak proxy made in this frame stands for."""
    target = guard_context.proxies[id(proxy)].target()
    if target is None:
        raise ProgramRaised(ReferenceError("weakly-referenced object no longer exists"))
    return target


def load_generic(interpreter: Interpreter, owner: object, name: str) -> object:
    """`object.__getattribute__`, which asks no `__getattr__`."""
    value = _find(interpreter, owner, name)
    if value is ABSENT:
        raise_missing(interpreter, owner, name)
    return value


def _load_or_fall_back(interpreter: Interpreter, owner: object, name: str) -> object:
    """`object.__getattribute__`; where that raises AttributeError, `__getattr__`."""
    try:
        value = _find(interpreter, owner, name)
        if value is not ABSENT:
            return value
    except ProgramRaised as raised:
        has_hook = interpreter.guard_context.lookup(type(owner), "__getattr__") is not ABSENT
        if not has_hook or not isinstance(raised.exception, AttributeError):
            raise
    return _fall_back(interpreter, owner, name)


def _find(interpreter: Interpreter, owner: object, name: str) -> object:
    """What the class and the instance dict give, or ABSENT."""
    cls = type(owner)
    guard_context = interpreter.guard_context
    meta = guard_context.lookup(cls, name)
    if meta is not ABSENT and _is_data_descriptor(guard_context, meta, type(meta)):
        return bind_attribute(interpreter, meta, owner, cls, name)
    value = instance_entry(interpreter, owner, name)
    if value is not ABSENT or meta is ABSENT:
        return value
    return bind_attribute(interpreter, meta, owner, cls, name)


# Modules that read a traceback only to hand it on.
_PASS_ON_TRACEBACKS = ("contextlib", "unittest.")


def _check_traceback(interpreter: Interpreter, owner: object) -> None:
    """An exception that was raised in interpreted code has no traceback to look at."""
    reader = str(interpreter.frames[-1].globals.get("__name__", ""))
    if id(owner) in interpreter.raised and not reader.startswith(_PASS_ON_TRACEBACKS):
        detail = "the traceback of an exception that was raised here"
        raise BreakRequested("unsupported-attribute", detail)


def _load_foreign(interpreter: Interpreter, owner: object, name: str) -> object:
    """An attribute of an object whose class looks them up in C code of its own: bound methods,
    thread-local data, super()."""
    if name == "__traceback__":
        _check_traceback(interpreter, owner)
    if issubclass(type(owner), _thread._local):
        written = interpreter.side_effects.slots.get((id(owner), name))
        if written is not None:
            return written[1]
        if name == "__dict__":
            raise BreakRequested("unsupported-attribute", "the dict of thread-local data")
    if type(owner) is types.MethodType and raw_lookup(types.MethodType, name) is ABSENT:
        return load_attribute(interpreter, load_attribute(interpreter, owner, "__func__"), name)
    return _read_natively(interpreter, owner, name, getattr, owner, name)


def _read_natively(
    interpreter: Interpreter, owner: object, name: str, read: Any, *args: object
) -> object:
    """What C code gives as `owner.name`: a field of a named tuple, thread-local data."""
    guard_context = interpreter.guard_context
    key = attribute_key(owner, name)
    if key in guard_context.reads:
        return guard_context.reads[key]
    try:
        value = interpreter.native(read, *args)
    except ProgramRaised as raised:
        if id(owner) in guard_context.known and isinstance(raised.exception, AttributeError):
            guard_context.guard(
                guard_context.known[id(owner)][1], GuardKind.HAS_ATTRIBUTE, (name, False)
            )
        raise
    is_method = type(value) is types.MethodType and value.__self__ is owner
    if id(owner) not in guard_context.known or (is_method and read is not getattr):
        return value
    guard_context.keep(value)
    return guard_context.read_attribute_value(owner, name, value)


def _fall_back(interpreter: Interpreter, owner: object, name: str) -> object:
    getattr_method = interpreter.guard_context.lookup(type(owner), "__getattr__")
    if getattr_method is torch.nn.Module.__getattr__:
        value = module_entry(interpreter, owner, name)
        if value is not ABSENT:
            return value
    elif getattr_method is not ABSENT:
        if type(getattr_method) in _C_METHODS and not is_of_items(getattr_method):
            raise BreakRequested("unsupported-attribute", f"{type(owner).__qualname__}.{name}")
        return _call_hook(interpreter, getattr_method, owner, "__getattr__", name)
    raise_missing(interpreter, owner, name)
    return None


def raise_missing(
    interpreter: Interpreter, owner: Any, name: str, in_slot: bool = False
) -> NoReturn:
    """The AttributeError of an attribute that is not there. in_slot: whose slot is empty."""
    cls = interpreter.guard_context.type_of(owner)
    kind = name_of_slotted(cls) if in_slot else cls.__name__
    if not in_slot and type(owner) is cls and not issubclass(cls, type):
        kind = name_in_errors(owner)
    error = AttributeError(f"{kind!r} object has no attribute {name!r}")
    error.name, error.obj = name, owner
    raise ProgramRaised(error)


def instance_entry(interpreter: Interpreter, owner: object, name: str) -> object:
    """The instance dict's entry, or ABSENT; guarded for an object from outside."""
    try:
        space = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return ABSENT
    if type(space) is not dict:
        return ABSENT
    guard_context = interpreter.guard_context
    if id(owner) not in guard_context.known:
        return space.get(name, ABSENT)
    side_effects = interpreter.side_effects
    if id(space) in side_effects.touched:
        written = side_effects.written(space, name)
        if written is not ABSENT:
            return ABSENT if written is DELETED else written
    key = attribute_key(owner, name)
    reads = guard_context.reads
    if key in reads:
        return reads[key]
    value = space.get(name, ABSENT)
    if value is ABSENT:
        guard_context.guard_lacks_attribute(space, owner, name)
        return ABSENT
    return guard_context.read_attribute_value(owner, name, value)


def instance_dict(owner: object) -> dict[str, object] | None:
    """The real `__dict__` of an object, without running its class's code."""
    try:
        space = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None
    return space if type(space) is dict else None


def _is_data_descriptor(guard_context: GuardContext, meta: object, kind: type) -> bool:
    if kind is types.FunctionType:
        return False
    if kind is property or kind is types.GetSetDescriptorType:
        return True
    if kind is types.MemberDescriptorType:
        return True
    if kind in CONSTANTS or kind in _C_METHODS:
        return False
    return hasattr(kind, "__get__") and (hasattr(kind, "__set__") or hasattr(kind, "__delete__"))


def bind_attribute(
    interpreter: Interpreter, meta: Any, owner: object, cls: type, name: str
) -> object:
    """What a class attribute gives when it is read through an instance."""
    kind = type(meta)
    guard_context = interpreter.guard_context
    if kind is types.FunctionType:
        guard_context.source_of_function(meta)
        return types.MethodType(meta, owner)
    if kind is property:
        guard_context.source_of_function(meta)
        if meta.fget is None:
            return interpreter.native(meta.__get__, owner, cls)
        return interpreter.call(meta.fget, owner)
    if kind is staticmethod:
        guard_context.source_of_function(meta.__func__)
        return meta.__func__
    if kind is classmethod:
        return _bind_class_method(guard_context, meta, cls)
    if kind is types.MemberDescriptorType or kind is types.GetSetDescriptorType:
        return load_slot(interpreter, meta, owner, cls, name)
    if kind is types.BuiltinFunctionType:
        return guard_context.class_value(cls, name, meta)
    if kind in _C_METHODS:
        return interpreter.native(meta.__get__, owner, cls)
    if kind is functools.cached_property:
        return _load_cached(interpreter, meta, owner)
    getter = guard_context.lookup(kind, "__get__") if kind not in CONSTANTS else ABSENT
    if type(getter) is types.FunctionType:
        guard_context.track(meta, ObjectSource(f"{cls.__qualname__}.{name}", meta))
        return interpreter.call(getter, meta, owner, cls)
    if getter is not ABSENT and not issubclass(type(meta), type):
        return _read_natively(interpreter, owner, name, meta.__get__, owner, cls)
    return guard_context.class_value(cls, name, meta)


def _bind_class_method(
    guard_context: GuardContext, meta: classmethod[Any, Any, Any], cls: type
) -> Callable[..., object]:
    function = meta.__func__
    guard_context.source_of_function(function)
    if type(function) is types.FunctionType:
        return types.MethodType(function, cls)
    return meta.__get__(None, cls)


def _load_cached(interpreter: Interpreter, meta: Any, owner: object) -> object:
    """functools.cached_property, whose lock is of no interest here."""
    value = interpreter.call(meta.func, owner)
    set_instance_entry(interpreter, owner, meta.attrname, value)
    return value


def load_slot(interpreter: Interpreter, meta: Any, owner: Any, cls: type, name: str) -> object:
    """What a slot, or a field that C code keeps, holds; guarded for an object from outside."""
    guard_context = interpreter.guard_context
    if name == "__code__" and cls is types.FunctionType:
        return code_of(owner)
    if id(owner) not in guard_context.known:
        if name == "__class__":
            return guard_context.type_of(owner)
        return interpreter.native(meta.__get__, owner, cls)
    written = interpreter.side_effects.slots.get((id(owner), name))
    if written is not None:
        if written[1] is DELETED:
            raise_missing(interpreter, owner, name, in_slot=True)
        return written[1]
    if name == "__class__":
        return cls
    if name == "__dict__":
        space = instance_dict(owner)
        if space is not None:
            return guard_context.track(space, guard_context.instance_dict_source(owner))
    key = attribute_key(owner, name)
    if key not in guard_context.reads:
        try:
            value = interpreter.native(*call_of_getter(meta, owner, cls))
        except ProgramRaised as raised:
            if isinstance(raised.exception, AttributeError):
                guard_context.guard(
                    guard_context.known[id(owner)][1], GuardKind.HAS_ATTRIBUTE, (name, False)
                )
            raise
        guard_context.read_attribute_value(owner, name, value)
        guard_context.keep(value)
    return guard_context.reads[key]


def _load_by_hook(interpreter: Interpreter, owner: object, name: str, hook: object) -> object:
    try:
        return _call_hook(interpreter, hook, owner, "__getattribute__", name)
    except ProgramRaised as raised:
        method = interpreter.guard_context.lookup(type(owner), "__getattr__")
        if not isinstance(raised.exception, AttributeError) or method is ABSENT:
            raise
    return _call_hook(interpreter, method, owner, "__getattr__", name)


def _call_hook(
    interpreter: Interpreter, hook: object, owner: object, hook_name: str, name: str
) -> object:
    if type(hook) in (types.FunctionType, *_C_METHODS):
        return interpreter.call(hook, owner, name)
    return interpreter.call(bind_attribute(interpreter, hook, owner, type(owner), hook_name), name)


# --- classes and modules -----------------------------------------------------------------------


def load_class_attribute(
    interpreter: Interpreter, owner: type, name: str, *, hooked: bool = True
) -> Any:
    """`Class.name`: the metaclass's data descriptors, then the class's own MRO, then what else the
    metaclass has. hooked: whether its `__getattr__` is asked where there is nothing."""
    guard_context = interpreter.guard_context
    meta = guard_context.lookup(type(owner), name)
    if meta is not ABSENT and _is_data_descriptor(guard_context, meta, type(meta)):
        if type(meta) not in _OF_C_STRUCTURES:
            return bind_attribute(interpreter, meta, owner, type(owner), name)
        return _load_of_type(interpreter, owner, name)
    value = guard_context.lookup(owner, name)
    if value is ABSENT:
        return _load_from_metaclass(interpreter, owner, name, meta, hooked)
    written_value = interpreter.side_effects.slots.get((id(owner), name))
    if written_value is not None:
        return written_value[1]
    kind = type(value)
    if kind is classmethod:
        return _bind_class_method(guard_context, value, owner)
    if kind is staticmethod:
        value = value.__func__
    elif kind is not types.FunctionType and kind not in CONSTANTS:
        getter = guard_context.lookup(kind, "__get__")
        if type(getter) is types.FunctionType:
            return interpreter.call(getter, value, None, owner)
        if getter is not ABSENT:
            value = interpreter.native(getattr, owner, name)
    return guard_context.class_value(owner, name, value)


def _load_of_type(interpreter: Interpreter, owner: type, name: str) -> object:
    """What a class says of itself: `__name__`, `__dict__`, `__bases__`."""
    guard_context = interpreter.guard_context
    key = (id(owner), name)
    if key in guard_context.reads:
        return guard_context.reads[key]
    value = interpreter.native(getattr, owner, name)
    if id(owner) in guard_context.made_classes or not owner.__flags__ & _HEAP_TYPE:
        return value
    source = AttributeSource(guard_context.source_of_function(owner), name)
    if name in _SHARED_TUPLES:
        guard_context.guard(source, GuardKind.ID_MATCH, value)
        value = guard_context.track(value, ObjectSource(str(source), value))
    elif type(value) in _GUARDED_OF_TYPES:
        value = guard_context.wrap_value(value, source)
    elif type(value) is types.MappingProxyType:
        guard_context.class_dicts[id(value)] = owner
    guard_context.keep(value)
    guard_context.reads[key] = value
    return value


_OF_C_STRUCTURES = frozenset({types.GetSetDescriptorType, types.MemberDescriptorType})
_SHARED_TUPLES = frozenset({"__bases__", "__mro__"})
_GUARDED_OF_TYPES = frozenset({str, type(None), dict})
_HEAP_TYPE = 1 << 9


def _load_from_metaclass(
    interpreter: Interpreter, owner: type, name: str, meta: object, hooked: bool
) -> object:
    if meta is not ABSENT:
        return bind_attribute(interpreter, meta, owner, type(owner), name)
    hook = interpreter.guard_context.lookup(type(owner), "__getattr__") if hooked else ABSENT
    if type(hook) is types.FunctionType:
        return interpreter.call(hook, owner, name)
    return interpreter.native(getattr if hooked else type.__getattribute__, owner, name)


def load_super_attribute(interpreter: Interpreter, proxy: Any, name: str) -> object:
    """`super().name`: the MRO of the object's class after the class where `super` stands."""
    start, owner, cls = proxy.__thisclass__, proxy.__self__, proxy.__self_class__
    source = interpreter.guard_context.source_of(proxy)
    if source is not None:
        parts = {"__thisclass__": start, "__self__": owner, "__self_class__": cls}
        wrap_value = interpreter.guard_context.wrap_value
        start, owner, cls = [wrap_value(v, AttributeSource(source, n)) for n, v in parts.items()]
    if name == "__class__":
        return super
    mro = (
        () if cls is None else interpreter.guard_context.lookup(cls, MRO)
    )  # None: bound to nothing
    for base in mro[mro.index(start) + 1 :] if mro else ():
        value = interpreter.guard_context.lookup(base, name)  # guards that those before have it not
        if name in vars(base):
            if owner is cls and type(value) is types.FunctionType:
                interpreter.guard_context.source_of_function(value)
                return value
            if type(value) is types.GetSetDescriptorType and type(owner) in TENSORS:
                raise BreakRequested("unsupported-tensor", f"super().{name} of a tensor")
            return bind_attribute(interpreter, value, owner, cls, name)
    return interpreter.native(object.__getattribute__, proxy, name)


def is_of_items(method: object) -> bool:
    """Whether a class says `__setattr__ = dict.__setitem__` or the like: attributes are items."""
    return type(method) in _C_METHODS and method in _OF_ITEMS


_OF_ITEMS = frozenset({dict.__getitem__, dict.get, dict.__setitem__, dict.__delitem__})


def set_instance_entry(interpreter: Interpreter, owner: Any, name: str, value: object) -> None:
    """Write the instance dict's entry itself."""
    if id(owner) not in interpreter.guard_context.known:
        interpreter.native(object.__setattr__, owner, name, value)
        return
    space = instance_dict(owner)
    if space is None:
        raise_missing(interpreter, owner, name)
    interpreter.side_effects.write(space, name, value, owner)
