"""nn.Module: the fast path of its attribute lookup, of assignment, and of its call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.frames.control_signals import ProgramRaised
from braze.capture.state.guard_context import TENSORS, GuardContext
from braze.capture.state.side_effects import DELETED, SideEffects
from braze.compat.torch.nn_modules import INSTANCE_HOOKS, global_hooks, has_hooks
from braze.ir.captured.guard import ABSENT
from braze.ir.captured.source import AttributeSource

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_KINDS = ("_parameters", "_buffers", "_modules")


def module_entry(interpreter: Interpreter, module: object, name: str) -> object:
    """What `Module.__getattr__` finds, or ABSENT."""
    guard_context = interpreter.guard_context
    side_effects = interpreter.side_effects
    space = object.__getattribute__(module, "__dict__")
    known = id(module) in guard_context.known
    touched = side_effects.touched if known else ()
    key = (id(module), (name,))  # apart from what the instance dict has under the name
    cached = guard_context.reads.get(key, ABSENT)
    if cached is not ABSENT and not touched:
        return cached
    for kind in _KINDS:
        entries = space.get(kind)
        if type(entries) not in (dict, OrderedDict):
            if entries is not None:
                return _interpreted_entry(interpreter, module, name)
            continue
        if not known and id(entries) in guard_context.known:  # shared by a copy made here
            return _interpreted_entry(interpreter, module, name)
        if id(entries) in touched:
            found = side_effects.written(entries, name)
            if found is not ABSENT:
                if found is DELETED:
                    continue
                return found
        if name in entries:
            if not known:
                return entries[name]
            if cached is ABSENT:
                source = AttributeSource(guard_context.known[id(module)][1], name)
                cached = guard_context.reads[key] = guard_context.wrap_value(entries[name], source)
            return cached
    if known:
        _guard_lacks(guard_context, module, space, name)
    return ABSENT


def _interpreted_entry(interpreter: Interpreter, module: object, name: str) -> object:
    """The same where a dict of the module's is of a class of the program's, which may have methods
    of its own: what `Module.__getattr__` itself says. It asks for the dicts by attributes."""
    if name in ("__dict__", *_KINDS):
        return ABSENT
    try:
        return interpreter.call_python(torch.nn.Module.__getattr__, (module, name), {})
    except ProgramRaised as raised:
        if type(raised.exception) is not AttributeError:
            raise
        return ABSENT


def _guard_lacks(
    guard_context: GuardContext, module: object, space: dict[str, Any], name: str
) -> None:
    """A buffer, parameter or module of that name may be registered later."""
    for kind in _KINDS:
        entries = space.get(kind)
        if entries is None:
            guard_context.guard_lacks_attribute(space, module, kind)
        elif name not in entries:  # else the frame deleted it
            guard_context.guard_lacks(
                entries, AttributeSource(guard_context.known[id(module)][1], kind), name
            )


def store_module_attribute(
    interpreter: Interpreter, module: object, name: str, value: object
) -> bool:
    """`Module.__setattr__` for a value that is no parameter, module or tensor; True if done."""
    guard_context = interpreter.guard_context
    if type(value) in TENSORS or issubclass(type(value), torch.nn.Module):
        return False
    if guard_context.lookup(type(module), name) is not ABSENT:
        return False
    space = object.__getattribute__(module, "__dict__")
    if any(name in space.get(kind, ()) for kind in _KINDS):
        return False
    is_known = id(module) in guard_context.known
    if not is_known and _shares(guard_context, space, _KINDS):
        return False
    if is_known:
        interpreter.side_effects.write(space, name, value, module)
    else:
        space[name] = value
    return True


def has_no_hooks(interpreter: Interpreter, module: object) -> bool:
    """Whether calling a module is calling its `forward`; guarded if so."""
    space = object.__getattribute__(module, "__dict__")
    if has_hooks(space) or _are_hooks_written(interpreter.side_effects, space):
        return False
    guard_context = interpreter.guard_context
    source = guard_context.source_of(module)
    if source is None and _shares(guard_context, space, INSTANCE_HOOKS):
        return False
    guard_context.guard_no_hooks(None, None)
    if source is not None:
        guard_context.guard_no_hooks(module, source)
    return True


def _shares(guard_context: GuardContext, space: dict[str, object], names: Iterable[str]) -> bool:
    """Whether a module made in the frame has dicts from outside: a shallow copy has its
    original's."""
    return any(id(space.get(name)) in guard_context.known for name in names)


def _are_hooks_written(side_effects: SideEffects, space: dict[str, Any]) -> bool:
    """Whether the frame wrote to a module's hooks, or to those of all modules."""
    touched = side_effects.touched
    if not touched:
        return False
    if not touched.isdisjoint(map(id, map(space.get, INSTANCE_HOOKS))):
        return True
    if not touched.isdisjoint(map(id, global_hooks())):
        return True
    if id(space) not in touched:
        return False
    return any(side_effects.written(space, name) is not ABSENT for name in INSTANCE_HOOKS)
