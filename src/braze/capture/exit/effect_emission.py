"""At the exit of a frame: the writes to what existed before, as effects."""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING

from braze.capture.exit.reconstruction import Reconstructor
from braze.capture.state.side_effects import DELETED, DictWrites, Shadow, SideEffects
from braze.ir.captured.frame import (
    CapturedCall,
    Effect,
    FromConstant,
    FromSource,
    NewDict,
    NewSequence,
    Recipe,
    ReplaceContents,
    SetAttribute,
    SetCell,
    SetGlobal,
    SetItem,
)

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def write_effects(interpreter: Interpreter, writer: Reconstructor) -> list[Effect]:
    """Every write of the overlay; new objects that they hold are filled before, by `writer`."""
    side_effects: SideEffects = interpreter.side_effects
    effects: list[Effect] = []
    for writes in side_effects.writes.values():
        effects += _dict_effects(interpreter, writer, writes)
    for (_, name), (owner, value) in side_effects.slots.items():
        target = FromSource(interpreter.guard_context.known[id(owner)][1])
        if issubclass(type(owner), _thread._local):
            parts = (target, FromConstant(name), writer.recipe(value))
            effects.append(CapturedCall(_thread._local.__setattr__, parts))
            continue
        effects.append(SetAttribute(target, name, _value(writer, value), through_dict=False))
    for shadow in side_effects.shadows.values():
        if shadow.changed:
            effects.append(_contents_effect(interpreter, writer, shadow))
    for container, extend, items in side_effects.additions():
        target = FromSource(interpreter.guard_context.known[id(container)][1])
        effects.append(CapturedCall(extend, (target, NewSequence(list, writer.recipes(items)))))
    for cell, value in side_effects.cells.values():
        effects.append(SetCell(writer.recipe(cell), _value(writer, value)))
    return effects


def _value(writer: Reconstructor, value: object) -> Recipe | None:
    return None if value is DELETED else writer.recipe(value)


def _dict_effects(
    interpreter: Interpreter, writer: Reconstructor, writes: DictWrites
) -> list[Effect]:
    guard_context = interpreter.guard_context
    space, owner = writes.space, writes.owner
    if owner is not None:
        target = FromSource(guard_context.known[id(owner)][1])
        return [SetAttribute(target, name, _value(writer, value)) for name, value in writes.steps()]
    source = guard_context.source_of(space)
    if source is None:
        return [SetGlobal(space, name, _value(writer, value)) for name, value in writes.steps()]
    return [
        SetItem(FromSource(source), writer.recipe(key), _value(writer, value))
        for key, value in writes.steps()
    ]


def _contents_effect(interpreter: Interpreter, writer: Reconstructor, shadow: Shadow) -> Effect:
    target = FromSource(interpreter.guard_context.known[id(shadow.original)][1])
    copy = shadow.copy
    contents: Recipe
    if isinstance(copy, dict):
        contents = NewDict(dict, writer.entries(copy))
    else:
        contents = NewSequence(list, writer.recipes(copy))
        if isinstance(copy, set):
            writer.check_keys(copy)
            contents = NewSequence(set, writer.recipes(copy))
    return ReplaceContents(target, contents)
