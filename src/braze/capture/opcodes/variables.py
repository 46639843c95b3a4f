"""Instructions that move data: locals, globals, cells, attributes, items, the stack itself."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from braze.capture.frames.control_signals import ProgramRaised
from braze.capture.frames.dispatch_table import opcode
from braze.capture.frames.frame import Frame, Unread
from braze.capture.objects.items import delete_item, get_item, store_item
from braze.capture.state.guard_context import BUILTINS
from braze.capture.state.side_effects import DELETED
from braze.compat.python.bytecode import Instruction
from braze.ir.captured.frame import NULL
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# --- constants and the stack -----------------------------------------------------------------


# --- locals ----------------------------------------------------------------------------------


def read_local(interpreter: Interpreter, frame: Frame, name: str) -> object:
    """A local variable; the program's UnboundLocalError if it has no value."""
    try:
        value = frame.locals[name]
    except KeyError:
        message = f"cannot access local variable {name!r} where it is not associated with a value"
        raise ProgramRaised(UnboundLocalError(message)) from None
    if type(value) is Unread:
        value = interpreter.guard_context.wrap_value(value.value, value.source)
        frame.locals[name] = value
    return value


def _load(interpreter: Interpreter, frame: Frame, name: str) -> object:
    """A local variable, or where the name is a cell's, the cell."""
    value = frame.locals.get(name, Unread)
    if type(value) is Unread or value is Unread:
        return frame.cells[name] if name in frame.cells else read_local(interpreter, frame, name)
    return value


def _store(frame: Frame, name: str, value: Any) -> None:
    """Set a local variable. After an inlined comprehension this puts back what it hid: a cell, or
    nothing."""
    frame.locals.pop(name, None)
    frame.cells.pop(name, None)
    if type(value) is types.CellType and name in frame.code.co_cellvars:
        frame.cells[name] = value
    elif value is not NULL:
        frame.locals[name] = value


@opcode("LOAD_FAST")
def load_fast(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.locals.get(instruction.value, Unread)
    if type(value) is Unread or value is Unread:
        value = _load(interpreter, frame, instruction.value)
    frame.stack.append(value)


@opcode("STORE_FAST")
def store_fast(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    if value is NULL or type(value) is types.CellType or frame.cells:
        _store(frame, instruction.value, value)
    else:
        frame.locals[instruction.value] = value


@opcode("DELETE_FAST")
def delete_fast(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    read_local(interpreter, frame, instruction.value)
    del frame.locals[instruction.value]


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    if instruction.value in frame.cells:
        frame.stack.append(frame.cells.pop(instruction.value))
    elif instruction.value in frame.locals:
        frame.stack.append(read_local(interpreter, frame, instruction.value))
        del frame.locals[instruction.value]
    else:
        frame.stack.append(NULL)


@opcode("STORE_FAST_MAYBE_NULL")
def store_fast_maybe_null(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    _store(frame, instruction.value, frame.stack.pop())


@opcode("LOAD_FAST_LOAD_FAST")
def load_fast_load_fast(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    for name in instruction.value:
        frame.stack.append(_load(interpreter, frame, name))


@opcode("STORE_FAST_LOAD_FAST")
def store_fast_load_fast(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    stored, loaded = instruction.value
    _store(frame, stored, frame.stack.pop())
    frame.stack.append(_load(interpreter, frame, loaded))


@opcode("STORE_FAST_STORE_FAST")
def store_fast_store_fast(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    for name in instruction.value:
        _store(frame, name, frame.stack.pop())


# --- cells -----------------------------------------------------------------------------------


@opcode("MAKE_CELL")
def make_cell(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    name = instruction.value
    cell = types.CellType()
    if name in frame.locals:
        cell.cell_contents = read_local(interpreter, frame, name)
        del frame.locals[name]
    interpreter.guard_context.fresh[id(cell)] = cell
    frame.cells[name] = cell


@opcode("LOAD_CLOSURE")
def load_closure(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(frame.cells[instruction.value])


@opcode("LOAD_DEREF")
def load_deref(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    name = instruction.value
    value = interpreter.side_effects.read_cell(frame.cells[name])
    if value is ABSENT:
        free = name in frame.code.co_freevars
        message = (
            f"cannot access free variable {name!r} where it is not associated with a value in "
            "enclosing scope"
            if free
            else f"cannot access local variable {name!r} where it is not associated with a value"
        )
        raise ProgramRaised(NameError(message, name=name) if free else UnboundLocalError(message))
    frame.stack.append(value)


@opcode("STORE_DEREF")
def store_deref(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    interpreter.side_effects.write_cell(frame.cells[instruction.value], frame.stack.pop())


@opcode("DELETE_DEREF")
def delete_deref(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    interpreter.side_effects.write_cell(frame.cells[instruction.value], DELETED)


# --- globals ---------------------------------------------------------------------------------


def read_global(interpreter: Interpreter, frame: Frame, name: str) -> object:
    """A global or builtin; the program's NameError if there is none."""
    space = frame.globals
    side_effects = interpreter.side_effects
    value: Any = ABSENT
    if id(space) in interpreter.guard_context.fresh:
        value = space.get(name, DELETED)
    elif id(space) in side_effects.touched:
        value = side_effects.written(space, name)
    if value is ABSENT:
        value = interpreter.guard_context.read_namespace(space, name, None)
    if value is ABSENT or value is DELETED:
        return _read_builtin(interpreter, name)
    return value


def _read_builtin(interpreter: Interpreter, name: str) -> object:
    """What the builtins hold now, or the frame put there."""
    side_effects = interpreter.side_effects
    value = side_effects.written(BUILTINS, name)
    if value is ABSENT:
        value = BUILTINS.get(name, ABSENT)
        interpreter.guard_context.guard_namespace(BUILTINS, name, value, "builtins")
    if value is ABSENT or value is DELETED:
        raise ProgramRaised(NameError(f"name {name!r} is not defined", name=name))
    return value


def write_global(interpreter: Interpreter, frame: Frame, name: str, value: Any) -> None:
    """Set a global, or delete it where the value is DELETED."""
    space = frame.globals
    if id(space) not in interpreter.guard_context.fresh:
        interpreter.side_effects.write(space, name, value)
    elif value is DELETED:
        del space[name]
    else:
        space[name] = value


@opcode("LOAD_NAME")
def load_name(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    value = _read_name(interpreter, frame.names, instruction.value)
    if value is ABSENT:
        value = read_global(interpreter, frame, instruction.value)
    frame.stack.append(value)


def _read_name(interpreter: Interpreter, names: object, name: str) -> object:
    """An entry of a class body's namespace, or ABSENT."""
    if type(names) is dict:
        return names.get(name, ABSENT)
    try:
        return get_item(interpreter, names, name)
    except ProgramRaised as raised:
        if isinstance(raised.exception, KeyError):
            return ABSENT
        raise


@opcode("STORE_NAME")
def store_name(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    store_item(interpreter, frame.names, instruction.value, frame.stack.pop())


@opcode("DELETE_NAME")
def delete_name(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    try:
        delete_item(interpreter, frame.names, instruction.value)
    except ProgramRaised as raised:
        if not isinstance(raised.exception, KeyError):
            raise
        message = f"name {instruction.value!r} is not defined"
        raise ProgramRaised(NameError(message, name=instruction.value)) from None


@opcode("LOAD_LOCALS")
def load_locals(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(frame.names)


@opcode("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(
    interpreter: Interpreter, frame: Frame, instruction: Instruction
) -> None:
    value = _read_name(interpreter, frame.stack.pop(), instruction.value)
    if value is ABSENT:
        value = read_global(interpreter, frame, instruction.value)
    frame.stack.append(value)


@opcode("LOAD_FROM_DICT_OR_DEREF")
def load_from_dict_or_deref(
    interpreter: Interpreter, frame: Frame, instruction: Instruction
) -> None:
    value = _read_name(interpreter, frame.stack.pop(), instruction.value)
    if value is ABSENT:
        load_deref(interpreter, frame, instruction)
    else:
        frame.stack.append(value)


@opcode("LOAD_CLASSDEREF")
def load_class_deref(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(frame.names)
    load_from_dict_or_deref(interpreter, frame, instruction)


# --- attributes ------------------------------------------------------------------------------


# --- items -----------------------------------------------------------------------------------
