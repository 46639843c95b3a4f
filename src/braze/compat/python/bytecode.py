"""CPython bytecode as plain data: decoded instructions and exception regions.

Instructions that do nothing for an interpreter (caches, prefixes, NOP) are dropped; a jump to one
of them goes to the instruction that follows. Keyword names of a call are folded into the call. An
instruction is called by its meaning in the table of opcodes, which several may share.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from typing import Any, final

from braze.compat.python.bytecode_versions import BYTECODE
from braze.compat.python.opcodes import OPCODES
from braze.compat.python.stub_gaps import exception_table_of, line_number_of
from braze.frozen import frozen

# What the decoder answers for itself.
FOLDED = frozenset(
    "CACHE EXTENDED_ARG NOP RESUME PRECALL KW_NAMES COPY_FREE_VARS NOT_TAKEN".split()
)
_PREFIXES = frozenset({"EXTENDED_ARG", "PRECALL", "KW_NAMES"})


@final
@frozen(eq=False)
class Region:
    """One exception region: where to go, how deep to cut the stack, whether to push the offset."""

    target: int
    depth: int
    push_offset: bool


@final
@frozen(eq=False)
class Instruction:
    """One decoded instruction.

    name: its meaning in the table of opcodes.
    offset: in bytes, of the first prefix (KW_NAMES, PRECALL, EXTENDED_ARG): where to resume.
    target: index of the jump's target instruction, or -1.
    keyword_names: of a call; region: what catches an exception raised here.
    """

    name: str
    arg: int
    value: Any
    offset: int
    line: int
    target: int
    keyword_names: tuple[str, ...]
    region: Region | None


@final
@frozen(eq=False)
class Program:
    """A code object, decoded. `index_at` maps byte offsets to instruction indices."""

    code: types.CodeType
    instructions: tuple[Instruction, ...]
    index_at: dict[int, int]


@functools.lru_cache(maxsize=8192)
def decode(code: types.CodeType) -> Program:
    """The instructions of a code object, for the running Python version."""
    raw = list(dis.get_instructions(code))
    hidden = _hidden_slots(code)
    index_at: dict[int, int] = {}
    count = 0
    for item in raw:
        index_at[item.offset] = count
        count += item.opname not in FOLDED
    regions = _regions(code, index_at)
    instructions: list[Instruction] = []
    line, start, keyword_names = code.co_firstlineno, -1, ()
    for item in raw:
        line = _line_of(item) or line
        if item.opname in FOLDED:
            if item.opname in _PREFIXES:
                start = item.offset if start < 0 else start
            if item.opname == "KW_NAMES":
                keyword_names = code.co_consts[item.arg or 0]
            elif item.opname not in _PREFIXES and item.opname != "CACHE":
                start = -1
            continue
        is_jump = item.opcode in _JUMPS
        arg = item.arg or 0
        row = OPCODES.get(item.opname)
        value = _slot_names(item, hidden) if hidden else item.argval
        instructions.append(
            Instruction(
                name=item.opname if row is None else row.meaning_of(arg),
                arg=arg,
                value=value if row is None or row.value is None else row.value(arg),
                offset=item.offset if start < 0 else start,
                line=line,
                target=index_at[item.argval] if is_jump else -1,
                keyword_names=keyword_names,
                region=_region_at(regions, item.offset),
            )
        )
        start, keyword_names = -1, ()
    return Program(code, tuple(instructions), index_at)


def instructions_text(code: types.CodeType, offset: int) -> str:
    """The instructions as `dis` lists them, with an arrow where a frame of them begins."""
    return dis.Bytecode(code, current_offset=offset).dis()


@functools.lru_cache(maxsize=8192)
def ends_by_raising(code: types.CodeType, index: int) -> bool:
    """Whether every way from an instruction ends by raising. (A call may raise, too: that is not
    asked.)"""
    instructions = decode(code).instructions
    ways, seen, raises = [index], {index}, False
    while ways:
        at = ways.pop()
        item = instructions[at]
        if item.name in _LEAVING:
            return False
        if item.name in _RAISING:
            raises = True
            continue
        following = [item.target] if item.target >= 0 else []
        if not item.name.startswith("JUMP_") or "_IF_" in item.name:
            following.append(at + 1)
        new = [way for way in following if way not in seen]
        seen.update(new)
        ways += new
    return raises


@functools.lru_cache(maxsize=8192)
def meeting_point(code: types.CodeType, first: int, second: int) -> int:
    """The first instruction that lies ahead on the ways from both of two; -1 where there is none.
    A jump back ends a way: where nothing else is in common, what both jump back to."""
    instructions = decode(code).instructions

    def ahead(start: int) -> tuple[set[int], set[int]]:
        ways, seen = [start], {start}
        back: set[int] = set()
        while ways:
            at = ways.pop()
            item = instructions[at]
            following = [item.target] if item.target >= 0 else []
            if not item.name.startswith("JUMP_") or "_IF_" in item.name:
                following += [] if item.name in _LEAVING | _RAISING else [at + 1]
            back.update(way for way in following if way <= at)
            new = [way for way in following if way > at and way not in seen]
            seen.update(new)
            ways += new
        return seen, back

    (seen, back), (others, also_back) = ahead(first), ahead(second)
    return min(seen & others or back & also_back or {-1})


def _hidden_slots(code: types.CodeType) -> dict[int, str]:
    """Names for the slots that share theirs with a free variable. In a class body with `nonlocal y`
    an inlined comprehension over `y` has a `y` of its own (from Python 3.12)."""
    own = [*code.co_varnames, *[n for n in code.co_cellvars if n not in code.co_varnames]]
    return {n: f"{name} (own)" for n, name in enumerate(own) if name in code.co_freevars}


def _slot_names(item: dis.Instruction, hidden: dict[int, str]) -> object:
    """What an instruction names, where its slots have other names than variables."""
    if item.opcode not in _SLOTS or item.arg is None:
        return item.argval
    if isinstance(item.argval, tuple):
        slots = zip((item.arg >> 4, item.arg & 15), item.argval)
        return tuple([hidden.get(slot, name) for slot, name in slots])
    return hidden.get(item.arg, item.argval)


_SLOTS = frozenset({*dis.haslocal, *dis.hasfree})
_LEAVING = frozenset({"RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE"})
_CONSTANTS = frozenset({"LOAD_CONST", "RETURN_CONST"})
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_RAISING = frozenset({"RAISE_VARARGS", "RERAISE"})
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
_RegionTable = list[tuple[int, int, Region]]


def _regions(code: types.CodeType, index_at: dict[int, int]) -> _RegionTable:
    entries = exception_table_of(code)
    return [
        (entry.start, entry.end, Region(index_at[entry.target], entry.depth, entry.lasti))
        for entry in entries
    ]


def _region_at(regions: _RegionTable, offset: int) -> Region | None:
    for start, end, region in regions:
        if start <= offset < end:
            return region
    return None


def _line_of(item: dis.Instruction) -> int | None:
    if BYTECODE.has_line_number_field:
        return line_number_of(item)
    return item.starts_line


def returns_none(function: types.FunctionType) -> bool:
    """Whether all that a function's code returns is None, written there or implied."""
    code = function.__code__
    if code.co_flags & _GENERATORS:
        return False
    before: Instruction | None = None
    for item in decode(code).instructions:
        given = item if item.name == "RETURN_CONST" else before
        if item.name in _LEAVING and (
            given is None or given.name not in _CONSTANTS or given.value is not None
        ):
            return False
        before = item
    return True
