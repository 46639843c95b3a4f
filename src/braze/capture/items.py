"""`owner[key]`, read, written and deleted."""

from __future__ import annotations

import collections
import operator
import types
from typing import Any

from braze.capture.asking_members import asks_members, finds_in_c
from braze.capture.leaf_calls import leaf_call
from braze.capture.native_calls import call_with_key
from braze.capture.object_numbers import refuse_number
from braze.capture.opaque_objects import check_opaque_key
from braze.capture.outside_proxies import entries_of
from braze.capture.overlay import DELETED, EXACT
from braze.capture.signals import BreakRequested, ProgramRaised
from braze.capture.tensor_items import store_tensor_item, tensor_item
from braze.capture.world import CONSTANTS, TENSORS, is_identity
from braze.compat.standard_library import ASSIGNS_DEFAULTS
from braze.ir.guard import ABSENT, base_length
from braze.ir.source import ItemSource
from braze.shapes.symbolic import ProgramInt
from braze.standins.numbers import SymbolicFloat


def get_item(interpreter: Any, owner: Any, key: Any) -> Any:
    """`owner[key]`."""
    cls = type(owner)
    world = interpreter.world
    if type(owner) in TENSORS:
        return tensor_item(interpreter, owner, key)
    check_opaque_key(interpreter, operator.getitem, key)
    world.harden(key)
    if type(key) is ProgramInt:
        key = int(key)
    if cls is SymbolicFloat or (type(key) is SymbolicFloat and (cls in EXACT or cls in CONSTANTS)):
        owner, key = [
            interpreter.native(float, x) if type(x) is SymbolicFloat else x for x in (owner, key)
        ]
        return interpreter.item(owner, key)
    if issubclass(type(owner), collections.defaultdict) and _makes_missing(world, cls):
        return _default_item(interpreter, owner, key)
    if id(owner) not in world.known:
        if cls in EXACT or cls in CONSTANTS:
            return _native_item(interpreter, owner, key)
    elif cls in EXACT:
        return _known_item(interpreter, owner, key)
    method = world.lookup(cls, "__getitem__")
    if type(method) is types.FunctionType:
        return interpreter.call(method, owner, key)
    if method is ABSENT:
        return _class_item(interpreter, owner, key)
    if id(owner) in world.known and issubclass(type(owner), (list, tuple, dict)):
        return _known_item(interpreter, owner, key)
    owner = entries_of(interpreter, owner)
    if id(owner) in world.known and not is_identity(owner):
        raise BreakRequested("unsupported-container", f"an item of {cls.__qualname__}")
    return call_with_key(interpreter, operator.getitem, owner, key)


def _makes_missing(world: Any, cls: type) -> bool:
    """Whether `owner[key]` is answered by `defaultdict` itself."""
    if cls is collections.defaultdict:
        return True
    has_own = world.lookup(cls, "__getitem__") is not dict.__getitem__
    return not has_own and world.lookup(cls, "__missing__") is _MISSING


_MISSING = collections.defaultdict.__missing__


def _default_item(interpreter: Any, owner: Any, key: Any) -> Any:
    """An item of a defaultdict, which its factory makes, and keeps, where there is none."""
    contents = interpreter.overlay.contents(owner)
    factory = contents.default_factory
    if factory is None or call_with_key(interpreter, dict.__contains__, contents, key):
        return _native_item(interpreter, contents, key)
    value = interpreter.call(factory)
    setter = interpreter.world.lookup(type(owner), "__setitem__")
    if type(setter) is types.FunctionType and ASSIGNS_DEFAULTS:
        interpreter.call(setter, owner, key, value)
    else:
        dict.__setitem__(interpreter.overlay.changed(owner), key, value)
    return value


def _native_item(interpreter: Any, owner: Any, key: Any) -> Any:
    if type(key) in TENSORS and not issubclass(type(owner), dict):
        return leaf_call(interpreter, operator.getitem, (owner, key), {})
    asks = issubclass(type(owner), dict) and asks_members(owner)
    if asks or type(key) not in CONSTANTS:
        return call_with_key(interpreter, operator.getitem, owner, key)
    try:
        return owner[key]
    except Exception as exception:
        raise ProgramRaised(exception) from None


def _class_item(interpreter: Any, owner: Any, key: Any) -> Any:
    """`Class[key]`: generic aliases, enum classes."""
    if issubclass(type(owner), type):
        method = interpreter.world.lookup(owner, "__class_getitem__")
        if issubclass(type(method), classmethod) and type(method.__func__) is types.FunctionType:
            return interpreter.call(method.__func__, owner, key)
    return interpreter.native(operator.getitem, owner, key)


def _known_item(interpreter: Any, owner: Any, key: Any) -> Any:
    overlay = interpreter.overlay
    world = interpreter.world
    if id(owner) in overlay.shadows or id(owner) in overlay.added:
        contents = overlay.contents(owner)
        if type(contents) is dict and finds_in_c(contents, key) and key not in contents:
            return _missing(interpreter, owner, key)
        return _native_item(interpreter, contents, key)
    source = world.known[id(owner)][1]
    if issubclass(type(owner), dict):
        if not finds_in_c(owner, key):
            return _native_item(interpreter, overlay.contents(owner), key)
        value = overlay.read(owner, key, source)
        if value is ABSENT:
            return _missing(interpreter, owner, key)
        return value
    held = base_length(owner)
    if type(key) is int and -held <= key < held:
        index = key if key >= 0 else key + held
        if key < 0:
            overlay.length(owner)
        read_key = (id(owner), index)
        if read_key not in world.reads:
            world.reads[read_key] = world.adopt(owner[index], ItemSource(source, index))
        return world.reads[read_key]
    return _native_item(interpreter, overlay.contents(owner), key)


def _missing(interpreter: Any, owner: Any, key: Any) -> Any:
    method = interpreter.world.lookup(type(owner), "__missing__")
    if type(method) is types.FunctionType:
        return interpreter.call(method, owner, key)
    if method is not ABSENT:
        raise BreakRequested(
            "unsupported-container", f"a missing item of {type(owner).__qualname__}"
        )
    raise ProgramRaised(KeyError(key))


def store_item(interpreter: Any, owner: Any, key: Any, value: Any) -> None:
    """`owner[key] = value`."""
    world = interpreter.world
    if type(owner) in TENSORS:
        store_tensor_item(interpreter, owner, key, value)
        return
    world.harden(key)
    if type(key) is ProgramInt:
        key = int(key)
    cls = type(owner)
    method = None if cls in EXACT else world.lookup(cls, "__setitem__")
    if type(method) is types.FunctionType:
        interpreter.call(method, owner, key, value)
        return
    if id(owner) in world.known and issubclass(type(owner), dict):
        write_entry(interpreter, owner, key, value)
    elif id(owner) not in world.known:
        call_with_key(interpreter, operator.setitem, owner, key, value)
    else:
        written = _written(interpreter, owner)
        value = written if value is owner and type(key) is slice else value
        call_with_key(interpreter, operator.setitem, written, key, value)


def _written(interpreter: Any, owner: Any) -> Any:
    """A container from outside as it is written to; one that cannot be says so itself."""
    is_fixed = issubclass(type(owner), (tuple, frozenset))
    return owner if is_fixed else interpreter.overlay.changed(owner)


def _is_single(interpreter: Any, owner: Any, key: Any) -> bool:
    """Whether one entry of a dict from outside is written by itself."""
    whole = not issubclass(type(owner), dict) or id(owner) in interpreter.overlay.shadows
    return not whole and finds_in_c(owner, key)


def write_entry(interpreter: Any, owner: Any, key: Any, value: Any) -> None:
    """`dict.__setitem__` of a dict from outside."""
    overlay = interpreter.overlay
    refuse_number(interpreter.world, key)
    if _is_single(interpreter, owner, key):
        overlay.write(owner, key, value)
    else:
        call_with_key(interpreter, operator.setitem, overlay.changed(owner), key, value)


def delete_item(interpreter: Any, owner: Any, key: Any) -> None:
    """`del owner[key]`."""
    world = interpreter.world
    world.harden(key)
    if type(key) is ProgramInt:
        key = int(key)
    method = world.lookup(type(owner), "__delitem__")
    if type(method) is types.FunctionType:
        interpreter.call(method, owner, key)
    elif id(owner) not in world.known:
        call_with_key(interpreter, operator.delitem, owner, key)
    else:
        _delete_known(interpreter, owner, key)


def delete_entry(interpreter: Any, owner: Any, key: Any) -> None:
    """`dict.__delitem__`, whatever the dict's class makes of `del`."""
    if id(owner) not in interpreter.world.known:
        call_with_key(interpreter, dict.__delitem__, owner, key)
    else:
        _delete_known(interpreter, owner, key)


def _delete_known(interpreter: Any, owner: Any, key: Any) -> None:
    world = interpreter.world
    if _is_single(interpreter, owner, key):
        if interpreter.overlay.read(owner, key, world.known[id(owner)][1]) is ABSENT:
            raise ProgramRaised(KeyError(key))
        interpreter.overlay.write(owner, key, DELETED)
    else:
        call_with_key(interpreter, operator.delitem, _written(interpreter, owner), key)
