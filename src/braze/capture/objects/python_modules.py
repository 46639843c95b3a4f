"""Attributes of Python modules: `module.name`, with the guards on the module's dict."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from braze.capture.frames.control_signals import ProgramRaised
from braze.capture.state.guard_context import raw_lookup
from braze.capture.state.side_effects import DELETED
from braze.compat.python.packages import is_of_package
from braze.ir.captured.guard import ABSENT
from braze.ir.captured.source import AttributeSource, ObjectSource

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def load_module_attribute(interpreter: Interpreter, owner: types.ModuleType, name: str) -> object:
    """`module.name`: the module's dict, its class, its own `__getattr__`."""
    space = vars(owner)
    guard_context = interpreter.guard_context
    side_effects = interpreter.side_effects
    if space is None or "__name__" not in space:  # made by ModuleType.__new__ alone
        return interpreter.native(getattr, owner, name)
    written = side_effects.written(space, name) if side_effects.writes else ABSENT
    if written is not ABSENT and written is not DELETED:
        return written
    key = (id(space), name)
    if written is ABSENT:
        if guard_context.reads.get(key, ABSENT) is not ABSENT:
            return guard_context.reads[key]
        if name in space:
            return guard_context.read_namespace(space, name, None)
    plain = type(owner) is types.ModuleType and raw_lookup(types.ModuleType, name) is ABSENT
    if plain and (written is DELETED or not is_of_package(owner.__name__, "torch")):
        if written is ABSENT:
            guard_context.guard_namespace(space, name, ABSENT)
        return _ask_module(interpreter, owner, name)
    try:
        value = interpreter.native(getattr, owner, name)
    finally:
        if written is ABSENT and name not in space:  # a lazy module keeps what it was asked for
            guard_context.guard_namespace(space, name, ABSENT)
    if name in space:
        return guard_context.read_namespace(space, name, None)
    return guard_context.wrap_value(
        value, AttributeSource(ObjectSource(owner.__name__, owner), name)
    )


def _ask_module(interpreter: Interpreter, owner: types.ModuleType, name: str) -> object:
    """What a module's own `__getattr__` gives for a name that the module lacks."""
    if name != "__getattr__":
        try:
            hook = load_module_attribute(interpreter, owner, "__getattr__")
        except ProgramRaised:
            hook = ABSENT
        if hook is not ABSENT:
            return interpreter.call(hook, name)
    known_as = load_module_attribute(interpreter, owner, "__name__")
    error = AttributeError(f"module {known_as!r} has no attribute {name!r}")
    error.name, error.obj = name, owner
    raise ProgramRaised(error)
