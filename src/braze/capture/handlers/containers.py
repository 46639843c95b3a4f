"""Methods of builtin containers that look at one entry: only that entry is guarded."""

from __future__ import annotations

import collections
import inspect
import types
from typing import TYPE_CHECKING, Any

from braze.capture.calls.c_functions import call_seen, call_with_key, is_plain_key
from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.handlers.builtins import mapping_source
from braze.capture.objects.items import delete_entry, get_item, store_item, write_entry
from braze.capture.objects.iteration import native_iterable
from braze.capture.objects.operators import contains, dict_has_key
from braze.capture.state.hidden_members import asks_members, finds_in_c, is_key
from braze.capture.state.side_effects import check_order
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def _entry(interpreter: Interpreter, owner: Any, key: object) -> object:
    """One entry of a dict, or ABSENT."""
    guard_context = interpreter.guard_context
    side_effects = interpreter.side_effects
    guard_context.guard_identity(key)
    if id(owner) in guard_context.known and finds_in_c(owner, key):
        return side_effects.read(owner, key, guard_context.known[id(owner)][1])
    contents = side_effects.contents(owner)
    return call_with_key(interpreter, dict.get, contents, key, ABSENT)


def _look_up_once(
    interpreter: Interpreter, method: object, owner: object, key: object, *rest: object
) -> object:
    """Call a method of dicts that finds an entry and changes it. A second lookup would ask the
    key's `__eq__` once more than eager does."""
    check_order(owner)
    is_known = id(owner) in interpreter.guard_context.known
    target = interpreter.side_effects.changed(owner) if is_known else owner
    return call_with_key(interpreter, method, target, key, *rest)


@answers(dict.get)
def dict_get(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    owner, key, *default = args
    found = _entry(interpreter, owner, key)
    if found is ABSENT:
        return default[0] if default else None
    return found


@answers(dict.__getitem__)
def dict_getitem(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    owner, key = args
    found = _entry(interpreter, owner, key)
    if found is not ABSENT:
        return found
    missing = interpreter.guard_context.lookup(type(owner), "__missing__")
    if missing is ABSENT:
        raise ProgramRaised(KeyError(key))
    if type(missing) is types.FunctionType:
        return interpreter.call(missing, owner, key)
    raise BreakRequested("unsupported-container", f"a missing item of {type(owner).__qualname__}")


@answers(dict.setdefault)
def dict_setdefault(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    owner, key, *default = args
    if not is_plain_key(key) or asks_members(owner):
        return _look_up_once(interpreter, dict.setdefault, owner, key, *default)
    found = _entry(interpreter, owner, key)
    if found is ABSENT:
        found = default[0] if default else None
        _set_entry(interpreter, owner, key, found)
    return found


@answers(dict.__setitem__)
def dict_setitem(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    _set_entry(interpreter, *args)


def _set_entry(interpreter: Interpreter, owner: object, key: object, value: object) -> None:
    """`dict.__setitem__`, whatever the dict's class makes of an assignment."""
    check_order(owner)
    if id(owner) in interpreter.guard_context.known:
        write_entry(interpreter, owner, key, value)
    else:
        call_with_key(interpreter, dict.__setitem__, owner, key, value)


@answers(dict.__delitem__)
def dict_delitem(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    check_order(args[0])
    delete_entry(interpreter, *args)


@answers(dict.pop)
def dict_pop(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    if len(args) == 1:
        return interpreter.native(dict.pop, {})
    owner, key, *default = args
    if not is_plain_key(key) or asks_members(owner):
        return _look_up_once(interpreter, dict.pop, owner, key, *default)
    found = _entry(interpreter, owner, key)
    if found is not ABSENT:
        check_order(owner)
        delete_entry(interpreter, owner, key)
        return found
    if default:
        return default[0]
    raise ProgramRaised(KeyError(key))


@answers(dict.__contains__)
def dict_contains(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    return dict_has_key(interpreter, *args)


@answers(dict.update)
def dict_update(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
    owner, *sources = args
    check_order(owner)
    added = [mapping_source(interpreter, source) for source in sources[:1]]
    if kwargs:
        added.append(kwargs)
    target = owner
    if id(owner) in interpreter.guard_context.known:
        if not asks_members(owner) and all(map(_has_plain_keys, added)):
            for key, value in [pair for each in added for pair in dict(each).items()]:
                write_entry(interpreter, owner, key, value)
            return
        target = interpreter.side_effects.changed(owner)
    for each in added:
        call_seen(interpreter, dict.update, (target, each), {})


def _has_plain_keys(source: dict[object, object] | list[tuple[object, ...]]) -> bool:
    """Whether what a dict is updated from has keys that C code compares."""
    if isinstance(source, dict):
        return all(map(is_key, dict.__iter__(source)))
    return all(len(pair) == 2 and is_key(pair[0]) for pair in source)


@answers(collections.OrderedDict.update)
def ordered_update(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """By the class's own `__setitem__`."""
    owner, *sources = args
    for source in (*sources, kwargs):
        if interpreter.guard_context.lookup(type(source), "keys") is not ABSENT:
            keys = interpreter.call(interpreter.attribute(source, "keys"))
            names = interpreter.native(list, native_iterable(interpreter, keys))
            pairs = [(key, interpreter.item(source, key)) for key in names]
        else:
            pairs = _pairs(interpreter, source)
        for key, value in pairs:
            store_item(interpreter, owner, key, value)


@answers(collections.OrderedDict.__ior__)
def ordered_or(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """As `update`."""
    owner, other = args
    ordered_update(interpreter, (owner, other), {})
    return owner


@answers(collections.OrderedDict.setdefault)
def ordered_setdefault(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """By the class's own `in`, `[]` and assignment."""
    given = _SETDEFAULT.bind(*args, **kwargs).arguments
    owner, key, value = given["self"], given["key"], given.get("default")
    if contains(interpreter, owner, key):
        return get_item(interpreter, owner, key)
    store_item(interpreter, owner, key, value)
    return value


_SETDEFAULT = inspect.signature(collections.OrderedDict.setdefault)


def _pairs(interpreter: Interpreter, source: object) -> list[Any]:
    pairs = interpreter.native(list, native_iterable(interpreter, source))
    found = [interpreter.native(tuple, native_iterable(interpreter, pair)) for pair in pairs]
    for pair in found:
        if len(pair) < 2:
            few = f"need more than {len(pair)} value{'' if len(pair) == 1 else 's'} to unpack"
            raise ProgramRaised(ValueError(few))
        if len(pair) > 2:
            raise ProgramRaised(ValueError("too many values to unpack (expected 2)"))
    return found
