"""`owner[key]`, read, written and deleted."""

from __future__ import annotations

import collections
import operator
import types
from typing import TYPE_CHECKING, Any

from braze.capture.calls.c_functions import call_with_key
from braze.capture.calls.torch_calls import leaf_call
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.objects.mapping_proxies import entries_of
from braze.capture.state.guard_context import CONSTANTS, TENSORS, is_identity
from braze.capture.state.hidden_members import asks_members, finds_in_c
from braze.capture.state.object_identity import refuse_number
from braze.capture.state.opaque_objects import check_opaque_key
from braze.capture.state.side_effects import DELETED, EXACT
from braze.capture.tensors.indexing import store_tensor_item, tensor_item
from braze.compat.python.stdlib import ASSIGNS_DEFAULTS
from braze.ir.captured.guard import ABSENT, base_length
from braze.ir.captured.source import ItemSource
from braze.shapes.symbolic import ProgramInt
from braze.tracing.symbolic.symbolic_float import SymbolicFloat

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.capture.state.guard_context import GuardContext


def get_item(interpreter: Interpreter, owner: object, key: object) -> object:
    """`owner[key]`."""
    cls = type(owner)
    guard_context = interpreter.guard_context
    if type(owner) in TENSORS:
        return tensor_item(interpreter, owner, key)
    check_opaque_key(interpreter, operator.getitem, key)
    guard_context.guard_identity(key)
    if type(key) is ProgramInt:
        key = int(key)
    if cls is SymbolicFloat or (type(key) is SymbolicFloat and (cls in EXACT or cls in CONSTANTS)):
        owner, key = [
            interpreter.native(float, x) if type(x) is SymbolicFloat else x for x in (owner, key)
        ]
        return interpreter.item(owner, key)
    if issubclass(type(owner), collections.defaultdict) and _makes_missing(guard_context, cls):
        return _default_item(interpreter, owner, key)
    if id(owner) not in guard_context.known:
        if cls in EXACT or cls in CONSTANTS:
            return _native_item(interpreter, owner, key)
    elif cls in EXACT:
        return _known_item(interpreter, owner, key)
    method = guard_context.lookup(cls, "__getitem__")
    if type(method) is types.FunctionType:
        return interpreter.call(method, owner, key)
    if method is ABSENT:
        return _class_item(interpreter, owner, key)
    if id(owner) in guard_context.known and issubclass(type(owner), (list, tuple, dict)):
        return _known_item(interpreter, owner, key)
    owner = entries_of(interpreter, owner)
    if id(owner) in guard_context.known and not is_identity(owner):
        raise BreakRequested("unsupported-container", f"an item of {cls.__qualname__}")
    return call_with_key(interpreter, operator.getitem, owner, key)


def _makes_missing(guard_context: GuardContext, cls: type) -> bool:
    """Whether `owner[key]` is answered by `defaultdict` itself."""
    if cls is collections.defaultdict:
        return True
    has_own = guard_context.lookup(cls, "__getitem__") is not dict.__getitem__
    return not has_own and guard_context.lookup(cls, "__missing__") is _MISSING


_MISSING = collections.defaultdict.__missing__


def _default_item(interpreter: Interpreter, owner: object, key: object) -> object:
    """An item of a defaultdict, which its factory makes, and keeps, where there is none."""
    contents = interpreter.side_effects.contents(owner)
    factory = contents.default_factory
    found = call_with_key(interpreter, dict.get, contents, key, ABSENT)
    if found is not ABSENT:
        return found
    if factory is None:
        raise ProgramRaised(KeyError(key))
    value = interpreter.call(factory)
    setter = interpreter.guard_context.lookup(type(owner), "__setitem__")
    if type(setter) is types.FunctionType and ASSIGNS_DEFAULTS:
        interpreter.call(setter, owner, key, value)
    else:
        target = interpreter.side_effects.changed(owner)
        call_with_key(interpreter, dict.__setitem__, target, key, value)
    return value


def _native_item(interpreter: Interpreter, owner: Any, key: Any) -> object:
    if type(key) in TENSORS and not issubclass(type(owner), dict):
        return leaf_call(interpreter, operator.getitem, (owner, key), {})
    asks = issubclass(type(owner), dict) and asks_members(owner)
    if asks or type(key) not in CONSTANTS:
        return call_with_key(interpreter, operator.getitem, owner, key)
    try:
        return owner[key]
    except Exception as exception:
        raise ProgramRaised(exception) from None


def _class_item(interpreter: Interpreter, owner: Any, key: object) -> Any:
    """`Class[key]`: generic aliases, enum classes."""
    if issubclass(type(owner), type):
        method = interpreter.guard_context.lookup(owner, "__class_getitem__")
        if issubclass(type(method), classmethod) and type(method.__func__) is types.FunctionType:
            return interpreter.call(method.__func__, owner, key)
    return interpreter.native(operator.getitem, owner, key)


def _known_item(interpreter: Interpreter, owner: Any, key: object) -> object:
    side_effects = interpreter.side_effects
    guard_context = interpreter.guard_context
    if id(owner) in side_effects.shadows or id(owner) in side_effects.added:
        contents = side_effects.contents(owner)
        if type(contents) is not dict:
            return _native_item(interpreter, contents, key)
        if finds_in_c(contents, key):
            if key not in contents:
                return _missing(interpreter, owner, key)
            return _native_item(interpreter, contents, key)
        return _hashed_item(interpreter, owner, contents, key)
    source = guard_context.known[id(owner)][1]
    if issubclass(type(owner), dict):
        if not finds_in_c(owner, key):
            return _hashed_item(interpreter, owner, side_effects.contents(owner), key)
        value = side_effects.read(owner, key, source)
        if value is ABSENT:
            return _missing(interpreter, owner, key)
        return value
    held = base_length(owner)
    if type(key) is int and -held <= key < held:
        index = key if key >= 0 else key + held
        if key < 0:
            side_effects.length(owner)
        read_key = (id(owner), index)
        if read_key not in guard_context.reads:
            guard_context.reads[read_key] = guard_context.wrap_value(
                owner[index], ItemSource(source, index)
            )
        return guard_context.reads[read_key]
    return _native_item(interpreter, side_effects.contents(owner), key)


def _hashed_item(interpreter: Interpreter, owner: object, contents: object, key: object) -> object:
    """An item of a dict whose keys hash by Python code."""
    if type(interpreter.guard_context.lookup(type(owner), "__missing__")) is types.FunctionType:
        found = call_with_key(interpreter, dict.get, contents, key, ABSENT)
        return _missing(interpreter, owner, key) if found is ABSENT else found
    return _native_item(interpreter, contents, key)


def _missing(interpreter: Interpreter, owner: object, key: object) -> object:
    method = interpreter.guard_context.lookup(type(owner), "__missing__")
    if type(method) is types.FunctionType:
        return interpreter.call(method, owner, key)
    if method is not ABSENT:
        raise BreakRequested(
            "unsupported-container", f"a missing item of {type(owner).__qualname__}"
        )
    raise ProgramRaised(KeyError(key))


def store_item(interpreter: Interpreter, owner: object, key: object, value: object) -> None:
    """`owner[key] = value`."""
    guard_context = interpreter.guard_context
    if type(owner) in TENSORS:
        store_tensor_item(interpreter, owner, key, value)
        return
    guard_context.guard_identity(key)
    if type(key) is ProgramInt:
        key = int(key)
    cls = type(owner)
    method = None if cls in EXACT else guard_context.lookup(cls, "__setitem__")
    if type(method) is types.FunctionType:
        interpreter.call(method, owner, key, value)
        return
    if id(owner) in guard_context.known and issubclass(type(owner), dict):
        write_entry(interpreter, owner, key, value)
    elif id(owner) not in guard_context.known:
        call_with_key(interpreter, operator.setitem, owner, key, value)
    else:
        written = _written(interpreter, owner)
        value = written if value is owner and type(key) is slice else value
        call_with_key(interpreter, operator.setitem, written, key, value)


def _written(interpreter: Interpreter, owner: object) -> object:
    """A container from outside as it is written to; one that cannot be says so itself."""
    is_fixed = issubclass(type(owner), (tuple, frozenset))
    return owner if is_fixed else interpreter.side_effects.changed(owner)


def _is_single(interpreter: Interpreter, owner: Any, key: object) -> bool:
    """Whether one entry of a dict from outside is written by itself."""
    whole = not issubclass(type(owner), dict) or id(owner) in interpreter.side_effects.shadows
    return not whole and finds_in_c(owner, key)


def write_entry(interpreter: Interpreter, owner: Any, key: object, value: object) -> None:
    """`dict.__setitem__` of a dict from outside."""
    side_effects = interpreter.side_effects
    refuse_number(interpreter.guard_context, key)
    if _is_single(interpreter, owner, key):
        side_effects.write(owner, key, value)
    else:
        call_with_key(interpreter, operator.setitem, side_effects.changed(owner), key, value)


def delete_item(interpreter: Interpreter, owner: object, key: object) -> None:
    """`del owner[key]`."""
    guard_context = interpreter.guard_context
    guard_context.guard_identity(key)
    if type(key) is ProgramInt:
        key = int(key)
    method = guard_context.lookup(type(owner), "__delitem__")
    if type(method) is types.FunctionType:
        interpreter.call(method, owner, key)
    elif id(owner) not in guard_context.known:
        call_with_key(interpreter, operator.delitem, owner, key)
    else:
        _delete_known(interpreter, owner, key)


def delete_entry(interpreter: Interpreter, owner: object, key: object) -> None:
    """`dict.__delitem__`, whatever the dict's class makes of `del`."""
    if id(owner) not in interpreter.guard_context.known:
        call_with_key(interpreter, dict.__delitem__, owner, key)
    else:
        _delete_known(interpreter, owner, key)


def _delete_known(interpreter: Interpreter, owner: Any, key: object) -> None:
    guard_context = interpreter.guard_context
    if _is_single(interpreter, owner, key):
        if interpreter.side_effects.read(owner, key, guard_context.known[id(owner)][1]) is ABSENT:
            raise ProgramRaised(KeyError(key))
        interpreter.side_effects.write(owner, key, DELETED)
    else:
        call_with_key(interpreter, operator.delitem, _written(interpreter, owner), key)
