"""The rest of a frame as a function: the original code behind a prologue.

    prologue   COPY_FREE_VARS, RESUME
               state[i] -> each bound local, cell and free variable
               state[i] -> each slot of the stack, PUSH_NULL for NULLs
               JUMP_FORWARD into the body          | or, to raise at the instruction:
               NOP                                 |    the exception, RAISE_VARARGS
    body       the original bytecode, not changed

`state` is a tuple in the cell of one more free variable, emptied before the body runs. The tables
of exceptions and locations are shifted; the prologue is placed at the user's line, and a raise
there is covered by the handler that covers the instruction. Generators are refused.

Nothing here imports torch, so that it is tested on each version of Python.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any, final

from braze.compat.python.code_objects import (
    GENERATOR_FLAGS,
    UNIT,
    Handler,
    encode,
    encode_subscript,
    entry_offset,
    handler_slots,
    instruction_at,
    keyword_names_before,
    position_of,
    read_handlers,
    slot_names,
    write_handlers,
    write_locations,
)
from braze.frozen import frozen
from braze.runtime.dispatch.tracebacks import give_traceback

_STATE = ".state"  # no identifier, so that it collides with no variable


@final
@frozen
class Point:
    """Where and with what a frame goes on.

    offset: in bytes of `co_code`, of an instruction or the first of its prefixes.
    bound: names of the bound locals, cells included, in the order in which they are passed.
    null_slots: for each stack slot, bottom first, whether it is NULL.
    raises: raise an exception at the instruction instead of executing it.
    """

    offset: int
    bound: tuple[str, ...]
    null_slots: tuple[bool, ...]
    raises: bool = False


@final
@frozen(eq=False)
class Continuation:
    """The code of one Point, to be started any number of times.

    offset_slots: stack slots that hold the byte offset of an exception, for RERAISE.
    exception_slots: those that hold an exception that is being handled.
    units: code units of the prologue.
    """

    code: types.CodeType
    original: types.CodeType
    point: Point
    offset_slots: frozenset[int]
    exception_slots: frozenset[int]
    units: int

    def function(
        self,
        namespace: dict[str, object],
        values: Mapping[str, Any],
        stack: Sequence[Any],
        exception: BaseException | None = None,
    ) -> types.FunctionType:
        """A function without arguments that runs the rest of the frame once.

        values: the bound locals; cell objects for cells and free variables.
        """
        slots = list(stack)
        for index in self.offset_slots:
            slots[index] = slots[index] // UNIT + self.units
        for index in self.exception_slots:
            give_traceback(slots[index], self.original, self.point.offset)
        state = (*slots, *[values[name] for name in self.point.bound], exception)
        cells = [values[name] for name in self.original.co_freevars]
        count = self.original.co_argcount
        function = types.FunctionType(
            self.code,
            namespace,
            self.original.co_name,
            (None,) * count,
            (*cells, types.CellType(state)),
        )
        keyword_only = self.original.co_kwonlyargcount
        if keyword_only:
            names = self.original.co_varnames[count : count + keyword_only]
            function.__kwdefaults__ = dict.fromkeys(names)
        return function

    def unused_values(
        self, function: types.FunctionType
    ) -> tuple[dict[str, object], list[object]] | None:
        """The bound locals and the stack of a function made here whose body has not begun; None
        where it has. An interrupt may come between making a function and its first instruction."""
        assert function.__closure__ is not None
        try:
            state = function.__closure__[-1].cell_contents
        except ValueError:
            return None
        depth = len(self.point.null_slots)
        slots = list(state[:depth])
        for index in self.offset_slots:
            slots[index] = (slots[index] - self.units) * UNIT
        return dict(zip(self.point.bound, state[depth:-1], strict=True)), slots


def make_continuation(code: types.CodeType, point: Point) -> Continuation:
    """The continuation of a code object at a point; ValueError where there can be none."""
    if code.co_flags & GENERATOR_FLAGS:
        raise ValueError(f"{code.co_qualname} is a generator: it cannot be entered in its middle")
    if point.offset < entry_offset(code):
        raise ValueError(f"{code.co_qualname}: offset {point.offset} is before the frame is set up")
    target = instruction_at(code, point.offset)
    constants = list(code.co_consts)
    prologue = _prologue(code, point, target, constants)
    units = len(prologue) // UNIT
    position = position_of(code, target)
    return Continuation(
        code.replace(
            co_code=prologue + code.co_code,
            co_consts=tuple(constants),
            co_freevars=(*code.co_freevars, _STATE),
            co_stacksize=max(code.co_stacksize, len(point.null_slots)) + 4,
            co_exceptiontable=write_handlers(_handlers(code, point, target, units)),
            co_linetable=write_locations(units - 1, position, code.co_firstlineno)
            + code.co_linetable,
        ),
        code,
        point,
        handler_slots(code, target).offsets,
        handler_slots(code, target).saved,
        units,
    )


def _handlers(code: types.CodeType, point: Point, target: int, units: int) -> list[Handler]:
    handlers = read_handlers(code.co_exceptiontable)
    shifted = [
        Handler(h.start + units, h.end + units, h.target + units, h.depth, h.push_offset)
        for h in handlers
    ]
    for handler, moved in zip(handlers, shifted):
        if point.raises and handler.start <= target // UNIT < handler.end:
            raising = moved._replace(start=units - 2, end=units - 1)
            return [raising, *shifted]
    return shifted


def _prologue(code: types.CodeType, point: Point, target: int, constants: list[object]) -> bytes:
    slots = {name: index for index, name in enumerate(slot_names(code))}
    state_slot = len(slots)

    def fetch(index: int) -> bytes:
        constants.append(index)
        return (
            encode("LOAD_DEREF", state_slot)
            + encode("LOAD_CONST", len(constants) - 1)
            + encode_subscript()
        )

    depth = len(point.null_slots)
    text = encode("COPY_FREE_VARS", len(code.co_freevars) + 1) + encode("RESUME", 0)
    for number, name in enumerate(point.bound):
        if name not in code.co_freevars:  # those were copied from the closure
            text += fetch(depth + number) + encode("STORE_FAST", slots[name])
    for name in _parameters(code):
        if name not in point.bound:
            text += encode("DELETE_FAST", slots[name])
    handling = handler_slots(code, target)
    copies = dict(handling.copies)
    for index, null in enumerate(point.null_slots):
        if null:
            text += encode("PUSH_NULL")
        elif index in copies:
            text += encode("COPY", index - copies[index])
        elif index in handling.saved:
            text += fetch(index) + encode("PUSH_EXC_INFO") + encode("POP_TOP")
        else:
            text += fetch(index)
    clear = encode("DELETE_DEREF", state_slot)
    if point.raises:
        text += fetch(depth + len(point.bound)) + clear + encode("RAISE_VARARGS", 1)
    else:
        keyword_names = keyword_names_before(code, point.offset)
        text += clear + (b"" if keyword_names is None else encode("KW_NAMES", keyword_names))
        text += encode("JUMP_FORWARD", 1 + point.offset // UNIT)
    return text + encode("NOP")


def _parameters(code: types.CodeType) -> tuple[str, ...]:
    """The names of the slots that a call fills."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return code.co_varnames[:count]
