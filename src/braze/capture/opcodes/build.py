"""Instructions that build and take apart tuples, lists, sets, dicts, strings and slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from braze.capture.calls.c_functions import call_seen
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.frames.dispatch_table import opcode
from braze.capture.frames.frame import Frame
from braze.capture.objects.items import store_item
from braze.capture.objects.iteration import (
    counted_iterable,
    is_uniterable,
    keyed_iterable,
    native_iterable,
)
from braze.capture.state.side_effects import EXACT, ordered_items
from braze.compat.python.bytecode import Instruction
from braze.compat.python.opcode_semantics import too_many_values
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def _take(stack: list[object], count: int) -> list[object]:
    if not count:
        return []
    taken = stack[-count:]
    del stack[-count:]
    return taken


# --- growing -------------------------------------------------------------------------------------


def _grown(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> Any:
    """The container to grow: after a continuation's entry it may be one from outside."""
    return interpreter.side_effects.changed(frame.stack[-instruction.arg])


@opcode("LIST_APPEND")
def list_append(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    _grown(interpreter, frame, instruction).append(value)


@opcode("SET_ADD")
def set_add(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    interpreter.guard_context.guard_identity(value)
    call_seen(interpreter, set.add, (_grown(interpreter, frame, instruction), value), {})


@opcode("MAP_ADD")
def map_add(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    key = frame.stack.pop()
    owner = _grown(interpreter, frame, instruction)
    interpreter.guard_context.guard_identity(key)
    call_seen(interpreter, dict.__setitem__, (owner, key, value), {})


@opcode("LIST_EXTEND")
def list_extend(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    if is_uniterable(interpreter, value):
        kind = interpreter.guard_context.type_of(value).__name__
        raise ProgramRaised(TypeError(f"Value after * must be an iterable, not {kind}"))
    value = counted_iterable(interpreter, value)
    interpreter.native(_grown(interpreter, frame, instruction).extend, value)


@opcode("SET_UPDATE")
def set_update(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    members = keyed_iterable(interpreter, frame.stack.pop())
    call_seen(interpreter, set.update, (_grown(interpreter, frame, instruction), members), {})


@opcode("LIST_TO_TUPLE")
def list_to_tuple(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack[-1] = tuple(interpreter.side_effects.contents(frame.stack[-1]))


@opcode("DICT_UPDATE")
def dict_update(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    contents = mapping_contents(interpreter, value)
    call_seen(interpreter, dict.update, (_grown(interpreter, frame, instruction), contents), {})


@opcode("DICT_MERGE")
def dict_merge(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    called = _called(frame, instruction)
    if interpreter.guard_context.lookup(type(value), "keys") is ABSENT:
        interpreter.native(_with_keywords, called, value)
    try:
        contents = mapping_contents(interpreter, value)
    except ProgramRaised as raised:
        problem = raised.exception
        if type(problem) is KeyError and len(problem.args) == 1:  # CPython takes it for its own
            key = problem.args[0]
            interpreter.native(_with_keywords, called, {key: None}, **{key: None})
        raise
    target = _grown(interpreter, frame, instruction)
    for key in contents:
        if key in target:
            interpreter.native(_with_keywords, called, {key: None}, **{key: None})
    target.update(contents)


def _called(frame: Frame, instruction: Instruction) -> object:
    """What is to be called with the dict that grows: it lies before the dict and the positional
    arguments, at places that differ between versions."""
    found = [v for v in reversed(frame.stack[: -instruction.arg]) if callable(v)]
    return found[0] if found else None


def _with_keywords(function: Any, first: Any, /, **second: Any) -> None:
    """Raise what CPython raises before the call."""
    function(**second, **first)


def mapping_contents(interpreter: Interpreter, value: object) -> dict[Any, Any]:
    """The entries of a mapping, as a dict that may be read natively."""
    iterates_plainly = interpreter.guard_context.lookup(type(value), "__iter__") is dict.__iter__
    if type(value) in EXACT or (issubclass(type(value), dict) and iterates_plainly):
        contents = interpreter.side_effects.contents(value)
        ordered_items(contents)  # breaks where no order can be read
        entries: dict[Any, Any] = contents  # no copy: that would ask the keys
        return entries
    guard_context = interpreter.guard_context
    if guard_context.lookup(type(value), "keys") is ABSENT:
        message = f"{type(value).__name__!r} object is not a mapping"
        raise ProgramRaised(TypeError(message))
    from_keys = interpreter.call(interpreter.attribute(value, "keys"))
    keys = interpreter.native(list, native_iterable(interpreter, from_keys))
    return {key: interpreter.item(value, key) for key in keys}


# --- taking apart --------------------------------------------------------------------------------


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    count = instruction.arg
    items = _bounded(interpreter, _to_unpack(interpreter, value), count)
    if len(items) > count:
        length = interpreter.length(value) if type(value) in EXACT else len(items)
        raise ProgramRaised(too_many_values(count, type(value), length))
    if len(items) < count:
        message = f"not enough values to unpack (expected {count}, got {len(items)})"
        raise ProgramRaised(ValueError(message))
    frame.stack.extend(reversed(items))


def _to_unpack(interpreter: Interpreter, value: object) -> Any:
    """The items of a value that is unpacked, for native code."""
    if is_uniterable(interpreter, value):
        kind = interpreter.guard_context.type_of(value).__name__
        raise ProgramRaised(TypeError(f"cannot unpack non-iterable {kind} object"))
    return native_iterable(interpreter, value)


def _bounded(interpreter: Interpreter, iterable: object, count: int) -> list[object]:
    """At most count + 1 items, as CPython takes them."""
    iterator = interpreter.native(iter, iterable)
    items: list[Any] = []
    for _ in range(count + 1):
        item = interpreter.native(next, iterator, ABSENT)
        if item is ABSENT:
            break
        items.append(item)
    return items


@opcode("UNPACK_EX")
def unpack_ex(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    before, after = instruction.arg & 0xFF, instruction.arg >> 8
    items = interpreter.native(list, _to_unpack(interpreter, frame.stack.pop()))
    if len(items) < before + after:
        message = (
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
        raise ProgramRaised(ValueError(message))
    middle = items[before : len(items) - after]
    frame.stack.extend(reversed([*items[:before], middle, *items[len(items) - after :]]))


# --- strings -------------------------------------------------------------------------------------

_CONVERSIONS = {0: None, 1: str, 2: repr, 3: ascii}


@opcode("BUILD_INTERPOLATION", "BUILD_TEMPLATE")
def build_template(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    raise BreakRequested("unbuildable-object", "a template string")


# --- match statements ----------------------------------------------------------------------------


@opcode("GET_LEN")
def get_len(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(interpreter.length(frame.stack[-1]))


@opcode("MATCH_SEQUENCE")
def match_sequence(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    flags = interpreter.guard_context.type_of(frame.stack[-1]).__flags__
    frame.stack.append(bool(flags & (1 << 5)))


@opcode("MATCH_MAPPING")
def match_mapping(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    flags = interpreter.guard_context.type_of(frame.stack[-1]).__flags__
    frame.stack.append(bool(flags & (1 << 6)))


@opcode("MATCH_KEYS")
def match_keys(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    keys, subject = frame.stack[-1], frame.stack[-2]
    repeated = next((key for at, key in enumerate(keys) if key in keys[:at]), ABSENT)
    if repeated is not ABSENT:
        message = f"mapping pattern checks duplicate key ({repeated!r})"
        raise ProgramRaised(ValueError(message))
    get = interpreter.attribute(subject, "get")
    nothing = object()
    found = [interpreter.call(get, key, nothing) for key in keys]
    frame.stack.append(None if any(value is nothing for value in found) else tuple(found))


@opcode("MATCH_CLASS")
def match_class(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    names = frame.stack.pop()
    cls = frame.stack.pop()
    subject = frame.stack.pop()
    frame.stack.append(_match_class(interpreter, subject, cls, names, instruction.arg))


def _match_class(
    interpreter: Interpreter, subject: object, cls: Any, names: tuple[str, ...], count: int
) -> tuple[object, ...] | None:
    if not interpreter.call(isinstance, subject, cls):
        return None
    found: list[Any] = []
    if count:
        if cls in _SELF_MATCHING:
            found.append(subject)
        else:
            names = (*_positions(interpreter, cls, count), *names)
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        message = f"{cls.__name__}() got multiple sub-patterns for attribute {twice!r}"
        raise ProgramRaised(TypeError(message))
    try:
        found += [interpreter.attribute(subject, name) for name in names]
    except ProgramRaised as raised:
        if isinstance(raised.exception, AttributeError):
            return None
        raise
    return tuple(found)


def _positions(interpreter: Interpreter, cls: type, count: int) -> tuple[str, ...]:
    """The attributes that positional patterns of a class match."""
    try:
        positions = interpreter.attribute(cls, "__match_args__")
    except ProgramRaised as raised:
        if not isinstance(raised.exception, AttributeError):
            raise
        positions = ()
    if type(positions) is not tuple:
        kind = type(positions).__name__
        message = f"{cls.__name__}.__match_args__ must be a tuple (got {kind})"
        raise ProgramRaised(TypeError(message))
    if len(positions) < count:
        plural = "" if len(positions) == 1 else "s"
        message = (
            f"{cls.__name__}() accepts {len(positions)} positional sub-pattern{plural} "
            f"({count} given)"
        )
        raise ProgramRaised(TypeError(message))
    for name in positions[:count]:
        if type(name) is not str:
            kind = type(name).__name__
            message = f"__match_args__ elements must be strings (got {kind})"
            raise ProgramRaised(TypeError(message))
    return positions[:count]


_SELF_MATCHING = frozenset(
    {bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple}
)


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    found = interpreter.call(dict.get, frame.names, "__annotations__", ABSENT)
    if found is ABSENT:
        store_item(interpreter, frame.names, "__annotations__", {})
