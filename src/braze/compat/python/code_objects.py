"""CPython's encodings that a continuation's code object needs: the exception table, the table of
locations, instructions with their caches. Nothing here imports torch.

Formats: CPython's `Objects/exception_handling_notes.txt` and `Objects/locations.md`.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, final

from braze.compat.python.bytecode_versions import BINARY_SIGNS
from braze.compat.python.opcodes import OPCODES
from braze.compat.python.stub_gaps import INLINE_CACHE_ENTRIES
from braze.frozen import frozen

UNIT = 2  # bytes of one code unit
Position = tuple[int | None, int | None, int | None, int | None]  # line, end line, column, end
GENERATOR_FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# Functions that go up from the frame that calls them, and types that are made in the module of the
# function that runs, whichever frames are hidden (from Python 3.12 on, where they are C code).
FRAME_WALKERS = (sys._getframe, typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple)
# Instructions that only prepare the one after them.
PREFIXES = frozenset({"EXTENDED_ARG", "PRECALL", "KW_NAMES"})


# KW_NAMES leaves its operand to CALL outside of the stack.
_KEYWORD_NAMES_APART = "KW_NAMES" in OPCODES
# NB_SUBSCR of BINARY_OP, from Python 3.14 the instruction of subscripts.
_SUBSCRIPT = next((n for n, sign in enumerate(BINARY_SIGNS) if sign == "[]"), -1)


def caches_after(name: str) -> int:
    """Cache units that follow an instruction."""
    caches = INLINE_CACHE_ENTRIES
    return caches.get(name, 0) if isinstance(caches, Mapping) else caches[dis.opmap[name]]


def encode_subscript() -> bytes:
    """The instruction that takes an item of a container."""
    return encode("BINARY_SUBSCR") if _SUBSCRIPT < 0 else encode("BINARY_OP", _SUBSCRIPT)


def encode(name: str, argument: int = 0) -> bytes:
    """One instruction with its prefixes and empty caches."""
    opcode = dis.opmap[name]
    prefixes = []
    high = argument >> 8
    while high:
        prefixes.append(bytes((dis.EXTENDED_ARG, high & 0xFF)))
        high >>= 8
    cache = bytes((dis.opmap["CACHE"], 0)) * caches_after(name)
    return b"".join(reversed(prefixes)) + bytes((opcode, argument & 0xFF)) + cache


# --- exception table -----------------------------------------------------------------------------


class Handler(NamedTuple):
    """Code units [start, end) are covered by the handler at `target` (units), which gets the
    stack cut to `depth`, the offset pushed if `push_offset`, and the exception."""

    start: int
    end: int
    target: int
    depth: int
    push_offset: bool


def read_handlers(table: bytes) -> list[Handler]:
    """The entries of `co_exceptiontable`, in order."""
    numbers = _read_varints(table)
    handlers = []
    for start in numbers:
        size, target, depth = next(numbers), next(numbers), next(numbers)
        handlers.append(Handler(start, start + size, target, depth >> 1, bool(depth & 1)))
    return handlers


def write_handlers(handlers: Iterable[Handler]) -> bytes:
    """The bytes of `co_exceptiontable`; entries sorted by start."""
    table = bytearray()
    for handler in handlers:
        first = len(table)
        depth = handler.depth << 1 | handler.push_offset
        for number in (handler.start, handler.end - handler.start, handler.target, depth):
            _append_big_endian(table, number)
        table[first] |= 0x80
    return bytes(table)


def _read_varints(table: bytes) -> Iterator[int]:
    value = 0
    for byte in table:
        value = value << 6 | byte & 0x3F
        if not byte & 0x40:
            yield value
            value = 0


def _append_big_endian(table: bytearray, number: int) -> None:
    chunks = [number & 0x3F]
    while number > 0x3F:
        number >>= 6
        chunks.append(number & 0x3F | 0x40)
    table.extend(reversed(chunks))


# --- locations -----------------------------------------------------------------------------------

_LONG, _LINE_ONLY, _NONE = 14, 13, 15
_MOST_UNITS = 8


def write_locations(units: int, position: Position, first_line: int) -> bytes:
    """Entries that place `units` code units at `position`, then one unit that brings the running
    line back to `first_line`, where the entries of the original code go on."""
    line, end_line, column, end_column = position
    table = bytearray()
    if line is None:
        for size in _pieces(units + 1):
            table.append(0x80 | _NONE << 3 | size - 1)
        return bytes(table)
    delta = line - first_line
    for size in _pieces(units):
        if end_line is None or column is None or end_column is None:
            table.append(0x80 | _LINE_ONLY << 3 | size - 1)
            _append_signed(table, delta)
        else:
            table.append(0x80 | _LONG << 3 | size - 1)
            _append_signed(table, delta)
            for number in (end_line - line, column + 1, end_column + 1):
                _append_little_endian(table, number)
        delta = 0
    table.append(0x80 | _LINE_ONLY << 3)
    _append_signed(table, first_line - line)
    return bytes(table)


def _pieces(units: int) -> Iterator[int]:
    while units > 0:
        yield min(units, _MOST_UNITS)
        units -= _MOST_UNITS


def _append_little_endian(table: bytearray, number: int) -> None:
    while number >= 0x40:
        table.append(0x40 | number & 0x3F)
        number >>= 6
    table.append(number)


def _append_signed(table: bytearray, number: int) -> None:
    _append_little_endian(table, -number << 1 | 1 if number < 0 else number << 1)


# --- what a code object says of an offset --------------------------------------------------------


def position_of(code: types.CodeType, offset: int) -> Position:
    """The position of an instruction; of the nearest one before it, where it has none."""
    positions = list(code.co_positions())[: offset // UNIT + 1]
    found = [position for position in positions if position[0] is not None]
    return found[-1] if found else (None, None, None, None)


def slot_names(code: types.CodeType) -> list[str]:
    """The names of the frame's fast slots, in order: locals, own cells, free variables."""
    own = [name for name in code.co_cellvars if name not in code.co_varnames]
    return [*code.co_varnames, *own, *code.co_freevars]


@functools.lru_cache(maxsize=512)
def _instructions(code: types.CodeType) -> tuple[dis.Instruction, ...]:
    """The instructions of a code object, without caches."""
    return tuple(item for item in dis.get_instructions(code) if item.opname != "CACHE")


def instruction_at(code: types.CodeType, offset: int) -> int:
    """The offset of the instruction that the prefixes at `offset` belong to."""
    for item in _instructions(code):
        if item.offset >= offset and item.opname not in PREFIXES:
            return item.offset
    raise ValueError(f"{code.co_qualname} has no instruction at offset {offset}")


def entry_offset(code: types.CodeType) -> int:
    """The offset of RESUME: before it, the frame's cells are not made."""
    resume = dis.opmap["RESUME"]
    raw = code.co_code
    return next(at for at in range(0, len(raw), UNIT) if raw[at] == resume)


def keyword_names_before(code: types.CodeType, offset: int) -> int | None:
    """The constant's index of a KW_NAMES whose call is at `offset`, or at the PRECALL there."""
    if not _KEYWORD_NAMES_APART:
        return None
    pending: int | None = None
    for item in _instructions(code):
        if item.offset >= offset:
            return pending
        if item.opname == "KW_NAMES":
            pending = item.arg
        elif item.opname not in PREFIXES:
            pending = None
    return None


@final
@frozen
class HandlerSlots:
    """Stack slots that exception handling filled, at one place.

    saved: what PUSH_EXC_INFO saved and POP_EXCEPT has not restored.
    copies: (slot, saved slot of which it is a copy).
    offsets: the place of an exception, for RERAISE.
    """

    saved: frozenset[int] = frozenset()
    copies: frozenset[tuple[int, int]] = frozenset()
    offsets: frozenset[int] = frozenset()

    def below(self, depth: int) -> HandlerSlots:
        """Those that are left when the stack is cut."""
        return HandlerSlots(
            frozenset(slot for slot in self.saved if slot < depth),
            frozenset((slot, original) for slot, original in self.copies if slot < depth),
            frozenset(slot for slot in self.offsets if slot < depth),
        )

    def after(self, item: dis.Instruction, depth: int) -> HandlerSlots:
        """After an instruction that finds `depth` slots; not yet cut to what it leaves."""
        top = depth - 1
        if item.opname == "PUSH_EXC_INFO":
            return replace(self, saved=self.saved | {top})
        if item.opname == "POP_EXCEPT":
            restored = {original for slot, original in self.copies if slot == top}
            return replace(self, saved=self.saved - restored - {top})
        other = depth - (item.arg or 0)
        if item.opname == "COPY":
            copies = self.copies | ({(depth, other)} if other in self.saved else set())
            offsets = self.offsets | ({depth} if other in self.offsets else set())
            return replace(self, copies=copies, offsets=offsets)
        if item.opname == "SWAP":
            names = {top: other, other: top}
            return HandlerSlots(
                frozenset(names.get(slot, slot) for slot in self.saved),
                frozenset((names.get(a, a), names.get(b, b)) for a, b in self.copies),
                frozenset(names.get(slot, slot) for slot in self.offsets),
            )
        return self


_NO_SLOTS = HandlerSlots()


def handler_slots(code: types.CodeType, offset: int) -> HandlerSlots:
    """The slots of exception handling at `offset`."""
    if dis.opmap["PUSH_EXC_INFO"] not in code.co_code[::UNIT]:
        return _NO_SLOTS
    return _slots_by_offset(code).get(offset, _NO_SLOTS)


@functools.lru_cache(maxsize=512)
def _slots_by_offset(code: types.CodeType) -> dict[int, HandlerSlots]:
    """A forward pass over the code: depth and slots per instruction, along jumps and handlers."""
    items = _instructions(code)
    index_at = {item.offset: index for index, item in enumerate(items)}
    handlers = read_handlers(code.co_exceptiontable)
    known: dict[int, HandlerSlots] = {}
    open_states = [(0, 0, _NO_SLOTS)]
    while open_states:
        index, depth, slots = open_states.pop()
        if index in known or index >= len(items):
            continue
        known[index] = slots
        item = items[index]
        for handler in handlers:
            if handler.start <= item.offset // UNIT < handler.end:
                kept = slots.below(handler.depth)
                if handler.push_offset:
                    kept = replace(kept, offsets=kept.offsets | {handler.depth})
                start = index_at[handler.target * UNIT]
                open_states.append((start, handler.depth + 1 + handler.push_offset, kept))
        open_states.extend(_successors(item, index, depth, slots, index_at))
    return {items[index].offset: slots for index, slots in known.items()}


_ENDS = frozenset(
    {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD"}
    | {"JUMP_BACKWARD_NO_INTERRUPT"}
)
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})


def _successors(
    item: dis.Instruction,
    index: int,
    depth: int,
    slots: HandlerSlots,
    index_at: dict[int, int],
) -> Iterator[tuple[int, int, HandlerSlots]]:
    after = slots.after(item, depth)
    argument = item.arg if item.opcode >= dis.HAVE_ARGUMENT else None
    ways = [] if item.opname in _ENDS else [(index + 1, False)]
    if item.opcode in _JUMPS:
        ways.append((index_at[item.argval], True))
    for successor, jumps in ways:
        left = depth + dis.stack_effect(item.opcode, argument, jump=jumps)
        yield successor, left, after.below(left)
