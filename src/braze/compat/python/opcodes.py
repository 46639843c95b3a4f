"""The one table of CPython's instructions: name, versions, stack effect, meaning.

    name           versions      stack effect              meaning
    LOAD_FAST      3.11 to 3.15  -- value                  LOAD_FAST
    LOAD_SMALL_INT 3.14, 3.15    -- value                  LOAD_CONST of its argument

A stack effect is written as in CPython's `bytecodes.c`: operands, bottom first, `--`, results;
`x[n]` stands for n slots. It is that of an instruction which does not jump; `jump` is that of one
which does, where it differs. The decoder calls an instruction by its meaning, so that whatever
carries out instructions knows one name for all that do the same. A meaning is carried out on two
kinds of values: on fake tensors by capture, on real ones by the driver of open frames. Meanings
that
need nothing but operations on values are written once, in `braze.compat.python.opcode_semantics`.

Sources: `dis` of each version, `Include/opcode_ids.h`, `Python/bytecodes.c`.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, final

from braze.compat.python.stub_gaps import COMMON_CONSTANTS
from braze.frozen import frozen

NEWEST = (3, 15)  # of the versions that the table knows
_NO_VARIANTS: Mapping[int, str] = MappingProxyType({})


@final
@frozen
class StackEffect:
    """How many slots an instruction takes and leaves, as functions of its argument.

    text: the effect as it is written in the table.
    """

    text: str

    def pops(self, arg: int) -> int:
        """The number of operands."""
        return _slots(self.text.partition("--")[0], arg)

    def pushes(self, arg: int) -> int:
        """The number of results."""
        return _slots(self.text.partition("--")[2], arg)


@final
@frozen
class Opcode:
    """One instruction, as a range of versions has it.

    first, last: the versions, both included.
    effect: on the stack, where it does not jump; jump: where it does.
    meaning: the name by which the decoder calls it.
    variants: argument -> meaning, of instructions that do several things.
    value: what it loads, of its argument; None where `dis` says what it is about.
    """

    name: str
    first: tuple[int, int]
    last: tuple[int, int]
    effect: StackEffect
    jump: StackEffect
    meaning: str
    variants: Mapping[int, str]
    value: Callable[[int], Any] | None

    def meaning_of(self, arg: int) -> str:
        """The meaning with an argument."""
        return self.variants.get(arg, self.meaning)


def opcodes(version: tuple[int, int]) -> dict[str, Opcode]:
    """The instructions of one version, by name; empty for one that is not in the table."""
    return {row.name: row for row in _ROWS if row.first <= version <= row.last}


# --- stack effects -------------------------------------------------------------------------------

# What stands in the brackets of a count -> slots, of the instruction's argument.
_COUNTS: dict[str, Callable[[int], int]] = {
    "arg": lambda arg: arg,
    "2*arg": lambda arg: 2 * arg,
    "arg&1": lambda arg: arg & 1,
    "arg&4": lambda arg: arg >> 2 & 1,
    "flags": lambda arg: (arg & 15).bit_count(),
    "before": lambda arg: arg & 0xFF,
    "after": lambda arg: arg >> 8,
}


def _slots(side: str, arg: int) -> int:
    total = 0
    for item in side.split():
        _, bracket, count = item.rstrip("]").partition("[")
        total += _COUNTS[count](arg) if bracket else 1
    return total


# --- rows ----------------------------------------------------------------------------------------


# Names, by LOAD_SPECIAL's argument; empty before Python 3.14.
SPECIAL_METHODS: tuple[str, ...] = tuple(getattr(dis, "_special_method_names", ()))


def _common_constant(arg: int) -> object:
    return COMMON_CONSTANTS[arg]


def _row(
    name: str,
    effect: str,
    since: int = 11,
    until: int = NEWEST[1],
    *,
    jump: str = "",
    meaning: str = "",
    variants: Mapping[int, str] = _NO_VARIANTS,
    value: Callable[[int], object] | None = None,
) -> Opcode:
    """A row; since, until: minor versions of Python 3."""
    return Opcode(
        name,
        (3, since),
        (3, until),
        StackEffect(effect),
        StackEffect(jump or effect),
        meaning or name,
        variants,
        value,
    )


_MARKERS = (
    *[_row(name, "--") for name in ("CACHE", "EXTENDED_ARG", "NOP", "RESUME", "COPY_FREE_VARS")],
    _row("PRECALL", "--", 11, 11),
    _row("KW_NAMES", "--", 11, 12),
    _row("NOT_TAKEN", "--", 14),
    _row("ENTER_EXECUTOR", "--", 13),
    _row("TRACE_RECORD", "--", 15),
    _row("RESERVED", "--", 12),
    _row("INTERPRETER_EXIT", "value --", 12),
    _row("EXIT_INIT_CHECK", "value --", 13),
)

_STACK = (
    _row("POP_TOP", "value --"),
    _row("PUSH_NULL", "-- null"),
    _row("SWAP", "--"),
    _row("COPY", "-- value"),
    _row("LOAD_CONST", "-- value"),
    _row("LOAD_SMALL_INT", "-- value", 14, meaning="LOAD_CONST", value=int),
    _row("LOAD_COMMON_CONSTANT", "-- value", 14, meaning="LOAD_CONST", value=_common_constant),
    _row(
        "LOAD_ASSERTION_ERROR",
        "-- value",
        until=13,
        meaning="LOAD_CONST",
        value=lambda arg: AssertionError,
    ),
)

_VARIABLES = (
    _row("LOAD_FAST", "-- value"),
    _row("LOAD_FAST_CHECK", "-- value", 12, meaning="LOAD_FAST"),
    # The reference is borrowed from the variable, which no instruction changes meanwhile.
    _row("LOAD_FAST_BORROW", "-- value", 14, meaning="LOAD_FAST"),
    _row("LOAD_FAST_AND_CLEAR", "-- value", 12),
    _row("LOAD_FAST_LOAD_FAST", "-- first second", 13),
    _row(
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
        "-- first second",
        14,
        meaning="LOAD_FAST_LOAD_FAST",
    ),
    _row("STORE_FAST", "value --"),
    _row("STORE_FAST_LOAD_FAST", "value -- value", 13),
    _row("STORE_FAST_STORE_FAST", "second first --", 13),
    _row("DELETE_FAST", "--"),
    _row("MAKE_CELL", "--"),
    _row("LOAD_CLOSURE", "-- cell", until=12),
    _row("LOAD_DEREF", "-- value"),
    _row("STORE_DEREF", "value --"),
    _row("DELETE_DEREF", "--"),
    _row("LOAD_CLASSDEREF", "-- value", until=11),
    _row("LOAD_GLOBAL", "-- value null[arg&1]"),
    _row("STORE_GLOBAL", "value --"),
    _row("DELETE_GLOBAL", "--"),
    _row("LOAD_NAME", "-- value"),
    _row("STORE_NAME", "value --"),
    _row("DELETE_NAME", "--"),
    _row("LOAD_LOCALS", "-- namespace", 12),
    _row("LOAD_FROM_DICT_OR_DEREF", "namespace -- value", 12),
    _row("LOAD_FROM_DICT_OR_GLOBALS", "namespace -- value", 12),
)

_MEMBERS = (
    _row("LOAD_ATTR", "owner -- value", until=11),
    _row("LOAD_ATTR", "owner -- value self[arg&1]", 12),
    _row("LOAD_METHOD", "owner -- method self", until=11),
    _row("LOAD_SUPER_ATTR", "super class self -- value self[arg&1]", 12),
    _row("LOAD_SPECIAL", "owner -- method self", 14),
    _row("STORE_ATTR", "value owner --"),
    _row("DELETE_ATTR", "owner --"),
    _row("BINARY_SUBSCR", "container key -- value", until=13),
    _row("STORE_SUBSCR", "value container key --"),
    _row("DELETE_SUBSCR", "container key --"),
    _row("BINARY_SLICE", "container start stop -- value", 12),
    _row("STORE_SLICE", "value container start stop --", 12),
)

_SUBSCRIPT = 26  # NB_SUBSCR, of BINARY_OP
_OPERATORS = (
    _row("BINARY_OP", "left right -- result", until=13),
    _row("BINARY_OP", "left right -- result", 14, variants={_SUBSCRIPT: "BINARY_SUBSCR"}),
    _row("COMPARE_OP", "left right -- result"),
    _row("IS_OP", "left right -- result"),
    _row("CONTAINS_OP", "left right -- result"),
    _row("UNARY_NOT", "value -- result"),
    _row("UNARY_NEGATIVE", "value -- result"),
    _row("UNARY_POSITIVE", "value -- result", until=11),
    _row("UNARY_INVERT", "value -- result"),
    _row("TO_BOOL", "value -- truth", 13),
)

_BUILDING = (
    _row("BUILD_TUPLE", "items[arg] -- tuple"),
    _row("BUILD_LIST", "items[arg] -- list"),
    _row("BUILD_SET", "items[arg] -- set"),
    _row("BUILD_MAP", "items[2*arg] -- dict"),
    _row("BUILD_CONST_KEY_MAP", "values[arg] keys -- dict", until=13),
    _row("BUILD_STRING", "parts[arg] -- text"),
    _row("BUILD_SLICE", "bounds[arg] -- slice"),
    _row("BUILD_INTERPOLATION", "value text format[arg&1] -- interpolation", 14),
    _row("BUILD_TEMPLATE", "texts interpolations -- template", 14),
    _row("LIST_APPEND", "value --"),
    _row("SET_ADD", "value --"),
    _row("MAP_ADD", "key value --"),
    _row("LIST_EXTEND", "values --"),
    _row("SET_UPDATE", "values --"),
    _row("DICT_UPDATE", "mapping --"),
    _row("DICT_MERGE", "mapping --"),
    _row("LIST_TO_TUPLE", "list -- tuple", until=11),
    _row("UNPACK_SEQUENCE", "sequence -- items[arg]"),
    _row("UNPACK_EX", "sequence -- after[after] rest before[before]"),
    _row("FORMAT_VALUE", "value format[arg&4] -- text", until=12),
    _row("CONVERT_VALUE", "value -- text", 13),
    _row("FORMAT_SIMPLE", "value -- text", 13),
    _row("FORMAT_WITH_SPEC", "value format -- text", 13),
    _row("GET_LEN", "value -- value length"),
    _row("MATCH_SEQUENCE", "value -- value truth"),
    _row("MATCH_MAPPING", "value -- value truth"),
    _row("MATCH_KEYS", "value keys -- value keys values"),
    _row("MATCH_CLASS", "value class names -- values"),
)

_FLOW = (
    _row("JUMP_FORWARD", "--"),
    _row("JUMP_BACKWARD", "--"),
    _row("JUMP_BACKWARD_NO_INTERRUPT", "--"),
    *[
        _row(
            f"POP_JUMP_{way}IF_{test}", "value --", *versions, meaning=f"POP_JUMP_{named}IF_{test}"
        )
        for test in ("TRUE", "FALSE", "NONE", "NOT_NONE")
        for way, named, versions in (
            ("", "", (12,)),
            ("FORWARD_", "", (11, 11)),
            ("BACKWARD_", "BACKWARD_", (11, 11)),
        )
    ],
    _row("JUMP_IF_TRUE_OR_POP", "value --", until=11, jump="value -- value"),
    _row("JUMP_IF_FALSE_OR_POP", "value --", until=11, jump="value -- value"),
    _row("GET_ITER", "iterable -- iterator", until=14),
    # 1 to 3: for `yield from` and `await`.
    _row(
        "GET_ITER",
        "iterable -- iterator index",
        15,
        variants=dict.fromkeys((1, 2, 3), "GET_YIELD_FROM_ITER"),
    ),
    _row("FOR_ITER", "iterator -- iterator value", until=11, jump="iterator --"),
    _row("FOR_ITER", "iterator -- iterator value", 12, 14),
    _row("FOR_ITER", "iterator index -- iterator index value", 15),
    _row("END_FOR", "iterator value --", 12, 12),
    _row("END_FOR", "value --", 13),
    _row("POP_ITER", "iterator --", 14, 14),
    _row("POP_ITER", "iterator index --", 15),
    _row("RETURN_VALUE", "value --", until=13),
    _row("RETURN_VALUE", "value -- value", 14),  # it is on the caller's stack then
    _row("RETURN_CONST", "--", 12, 13),
)

_GENERATORS = (
    _row("RETURN_GENERATOR", "-- sent"),
    _row("YIELD_VALUE", "value -- sent"),
    _row("GET_YIELD_FROM_ITER", "iterable -- iterator", until=14),
    _row("SEND", "receiver value -- receiver value", until=11, jump="receiver value -- value"),
    _row("SEND", "receiver value -- receiver value", 12, 14),
    _row("SEND", "receiver index value -- receiver index value", 15),
    _row("END_SEND", "receiver value -- value", 12, 14),
    _row("END_SEND", "receiver index value -- value", 15),
    _row("CLEANUP_THROW", "receiver value exception -- none value", 12, 14),
    _row("CLEANUP_THROW", "receiver index value exception -- none null value", 15),
    _row("ASYNC_GEN_WRAP", "value -- value", until=11),
    _row("GET_AITER", "iterable -- iterator"),
    _row("GET_ANEXT", "iterator -- iterator awaitable"),
    _row("GET_AWAITABLE", "value -- awaitable"),
    _row("END_ASYNC_FOR", "iterator exception --"),
    _row("BEFORE_ASYNC_WITH", "manager -- leave awaitable", until=13),
)

_EXCEPTIONS = (
    _row("PUSH_EXC_INFO", "exception -- handled exception"),
    _row("POP_EXCEPT", "handled --"),
    _row("CHECK_EXC_MATCH", "exception class -- exception truth"),
    _row("CHECK_EG_MATCH", "exception class -- rest match"),
    _row("PREP_RERAISE_STAR", "original raised -- exception", until=11),
    _row("RERAISE", "exception --"),
    _row("RAISE_VARARGS", "exception[arg] --"),
    _row("BEFORE_WITH", "manager -- leave entered", until=13),
    _row("WITH_EXCEPT_START", "-- answer"),
)

_CALLS = (
    _row("CALL", "method callable args[arg] -- result", until=12),
    _row("CALL", "callable self args[arg] -- result", 13),
    _row("CALL_KW", "callable self args[arg] names -- result", 13),
    _row("CALL_FUNCTION_EX", "null callable args kwargs[arg&1] -- result", until=12),
    _row("CALL_FUNCTION_EX", "callable null args kwargs[arg&1] -- result", 13, 13),
    _row("CALL_FUNCTION_EX", "callable null args kwargs -- result", 14),
    _row("CALL_INTRINSIC_1", "value -- result", 12),
    _row("CALL_INTRINSIC_2", "first second -- result", 12),
    _row("MAKE_FUNCTION", "attributes[flags] code -- function", until=12),
    _row("MAKE_FUNCTION", "code -- function", 13),
    _row("SET_FUNCTION_ATTRIBUTE", "value function -- function", 13),
    _row("LOAD_BUILD_CLASS", "-- function"),
    _row("SETUP_ANNOTATIONS", "--"),
    _row("PRINT_EXPR", "value --", until=11),
    _row("IMPORT_NAME", "level names -- module"),
    _row("IMPORT_FROM", "module -- module value"),
    _row("IMPORT_STAR", "module --", until=11),
)

_ROWS = (
    *_MARKERS,
    *_STACK,
    *_VARIABLES,
    *_MEMBERS,
    *_OPERATORS,
    *_BUILDING,
    *_FLOW,
    *_GENERATORS,
    *_EXCEPTIONS,
    *_CALLS,
)

# The running version's.
OPCODES = opcodes(sys.version_info[:2])
