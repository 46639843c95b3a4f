"""At the exit of a frame: the writes to what existed before, as effects."""

from __future__ import annotations

import _thread
from typing import Any

from braze.capture.overlay import DELETED, DictWrites, Overlay, ordered_items
from braze.capture.recipes import RecipeWriter
from braze.ir.frame import (
    Call,
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


def write_effects(interpreter: Any, writer: RecipeWriter) -> list[Effect]:
    """Every write of the overlay; new objects that they hold are filled before, by `writer`."""
    overlay: Overlay = interpreter.overlay
    effects: list[Effect] = []
    for writes in overlay.writes.values():
        effects += _dict_effects(interpreter, writer, writes)
    for (_, name), (owner, value) in overlay.slots.items():
        target = FromSource(interpreter.world.known[id(owner)][1])
        if issubclass(type(owner), _thread._local):
            parts = (target, FromConstant(name), writer.recipe(value))
            effects.append(Call(_thread._local.__setattr__, parts))
            continue
        effects.append(SetAttribute(target, name, _value(writer, value), through_dict=False))
    for shadow in overlay.shadows.values():
        if shadow.changed:
            effects.append(_contents_effect(interpreter, writer, shadow))
    for container, extend, items in overlay.additions():
        target = FromSource(interpreter.world.known[id(container)][1])
        effects.append(Call(extend, (target, NewSequence(list, writer.recipes(items)))))
    for cell, value in overlay.cells.values():
        effects.append(SetCell(writer.recipe(cell), _value(writer, value)))
    return effects


def _value(writer: RecipeWriter, value: Any) -> Recipe | None:
    return None if value is DELETED else writer.recipe(value)


def _dict_effects(interpreter: Any, writer: RecipeWriter, writes: DictWrites) -> list[Effect]:
    world = interpreter.world
    space, owner = writes.space, writes.owner
    if owner is not None:
        target = FromSource(world.known[id(owner)][1])
        return [SetAttribute(target, name, _value(writer, value)) for name, value in writes.steps()]
    source = world.source_of(space)
    if source is None:
        return [SetGlobal(space, name, _value(writer, value)) for name, value in writes.steps()]
    return [
        SetItem(FromSource(source), writer.recipe(key), _value(writer, value))
        for key, value in writes.steps()
    ]


def _contents_effect(interpreter: Any, writer: RecipeWriter, shadow: Any) -> Effect:
    target = FromSource(interpreter.world.known[id(shadow.original)][1])
    copy = shadow.copy
    contents: Recipe
    if isinstance(copy, dict):
        entries = [(writer.recipe(k), writer.recipe(v)) for k, v in ordered_items(copy)]
        contents = NewDict(dict, tuple(entries))
    else:
        contents = NewSequence(list, writer.recipes(copy))
        if isinstance(copy, set):
            contents = NewSequence(set, writer.recipes(copy))
    return ReplaceContents(target, contents)
