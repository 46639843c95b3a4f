"""Objects that came into a frame behind a graph break and are noticed when they end: they have a
`__del__`, or somebody holds a weak reference with a callback.

In eager such an object ends with the instruction that drops the last reference; held by the frame's
entry it would live until the captured piece is over. So capture stops where the last place of the
frame that holds it is given up: that instruction is executed for real. A function's arguments are
not looked at: its caller holds them.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Container, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from braze.capture.frames.control_signals import BreakRequested
from braze.capture.frames.frame import Frame, Unread
from braze.capture.frames.generators import InlinedGenerator
from braze.capture.state.guard_context import CONSTANTS, TENSORS, raw_lookup
from braze.capture.state.provenance import module_of_class
from braze.capture.state.special_methods import LASTING, has_callbacks
from braze.compat.python.packages import is_of_package
from braze.ir.captured.frame import NULL

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.capture.state.side_effects import SideEffects


def entered_with(frame: Frame) -> dict[int, object]:
    """The values that a frame goes on with, by identity; cells give their contents."""
    return {id(value): value for value in _held(frame, {})}


def noticed_ends(values: Iterable[object]) -> dict[int, object]:
    """Those of the values whose end is noticed."""
    return {id(value): value for value in values if _is_noticed(value)}


def check_ends(interpreter: Interpreter) -> None:
    """BreakRequested where an object whose end is noticed is no longer held by a frame."""
    held: set[int] = set()
    for frame in interpreter.frames:
        held.update(map(id, _held(frame, interpreter.side_effects.cells)))
    for key, value in interpreter.noticed_ends.items():
        if key not in held:
            raise BreakRequested("finalizer", f"a {type(value).__qualname__}")


def may_have_ended(interpreter: Interpreter, value: object) -> bool:
    """Whether the frame went on with a value and holds it no more."""
    if id(value) not in interpreter.entered_with:
        return False
    seen = (id(value), id(interpreter.guard_context.fakes.get(id(value), value)))
    written = interpreter.side_effects.cells
    return not any(
        id(held) in seen for frame in interpreter.frames for held in _held(frame, written)
    )


def is_dropped(interpreter: Interpreter, target: object) -> bool:
    """Whether nothing that the program still has leads to an object made in the frame, which has
    ended in eager, though capture keeps it. What is beyond a number of objects counts as dropped:
    the frame is left there, and real references answer."""
    guard_context = interpreter.guard_context
    if id(target) in guard_context.known:
        return False
    side_effects = interpreter.side_effects
    left: list[Any] = [
        value for _, value in (*side_effects.slots.values(), *side_effects.cells.values())
    ]
    left += [writes.entries for writes in side_effects.writes.values()]
    left += [shadow.copy for shadow in side_effects.shadows.values()]
    left += [items for _, items in side_effects.added.values()]
    for frame in interpreter.frames:
        left += [*_held(frame, side_effects.cells), *frame.handled]
    return not _leads_to(left, target, side_effects.cells, guard_context.known, False)


def has_lost_a_place(interpreter: Interpreter, target: object) -> bool:
    """Whether something that led to an object from outside was overwritten or taken out of its
    container: in eager the object may have ended with it. What is beyond a number of objects counts
    as led to."""
    if issubclass(type(target), LASTING):
        return False
    lost = [value for value in _overwritten(interpreter.side_effects) if value is not None]
    fakes = interpreter.guard_context.fakes
    lost += [fakes[id(value)] for value in lost if id(value) in fakes]
    return bool(lost) and _leads_to(lost, target, {}, {}, True)


def _overwritten(side_effects: SideEffects) -> list[object]:
    """What objects from outside held where the frame wrote to them, and may hold no more."""
    found = [dict.get(w.space, key) for w in side_effects.writes.values() for key in w.entries]
    for shadow in side_effects.shadows.values():
        if shadow.changed:
            mapped = issubclass(type(shadow.original), dict)
            found += (dict.values if mapped else iter)(shadow.original)
    for cell, _ in side_effects.cells.values():
        with suppress(ValueError):  # it may be empty
            found.append(cell.cell_contents)
    for (_, name), (owner, _) in side_effects.slots.items():
        slot = raw_lookup(type(owner), name)
        if type(slot) is types.MemberDescriptorType:
            with suppress(AttributeError):  # it may be empty
                found.append(slot.__get__(owner, type(owner)))
    return found


def _leads_to(
    left: list[object],
    target: object,
    written: dict[int, tuple[types.CellType, object]],
    known: Container[int],
    beyond: bool,
) -> bool:
    """Whether objects that hold each other lead to one; `beyond` where there are too many. Nothing
    is known of what `known` objects hold."""
    seen: set[int] = set()
    while left:
        if len(seen) >= _MOST_WALKED:
            return beyond
        value = left.pop()
        if value is target:
            return True
        if id(value) not in seen and id(value) not in known:
            seen.add(id(value))
            left += _led_to(value, written)
    return False


_MOST_WALKED = 10_000


def _led_to(value: Any, written: dict[int, tuple[types.CellType, object]]) -> Iterable[object]:
    """What an object holds; nothing of modules, of functions' globals, of frames and of what is
    capture's own."""
    cls = type(value)
    if cls is InlinedGenerator:
        return [*_held(value.frame, written), *value.frame.handled]
    if cls is types.CellType and id(value) in written:
        return [written[id(value)][1]]
    if cls is types.FunctionType:
        return [value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__]
    if cls in TENSORS:
        return [value._backward_hooks]  # `RemovableHandle` refers to it weakly
    is_own = is_of_package(module_of_class(cls), "braze")
    if is_own or issubclass(cls, _NOT_WALKED) or cls in CONSTANTS:
        return ()
    return gc.get_referents(value)


_NOT_WALKED = (types.ModuleType, types.FrameType, types.TracebackType, types.CodeType)


def left_by_callee(waiting: list[object], below: int, call: str) -> list[object]:
    """The stack of a frame that waits at a call of a Python function, `below` slots of it under the
    operands: the arguments have become the callee's, which may let go of them."""
    if call not in _MOVING_CALLS:
        return waiting
    kept = below + (1 if waiting[below] is not NULL and waiting[below + 1] is not NULL else 2)
    end = len(waiting) - _MOVING_CALLS[call]
    return [*waiting[:kept], *[None] * (end - kept), *waiting[end:]]


# Calls that move their arguments -> operands above these.
_MOVING_CALLS = {"CALL": 0, "CALL_KW": 1}


def _held(frame: Frame, written: dict[int, tuple[types.CellType, object]]) -> Iterable[object]:
    for value in (*frame.locals.values(), *frame.stack):
        if value is not NULL:
            yield value.value if type(value) is Unread else value
    for cell in frame.cells.values():
        try:
            yield written[id(cell)][1] if id(cell) in written else cell.cell_contents
        except ValueError:  # it is empty
            continue


def _is_noticed(value: Any) -> bool:
    cls = type(value)
    if cls is types.GeneratorType:
        return value.gi_frame is not None
    if hasattr(cls, "__del__"):
        return True
    return has_callbacks(value)
