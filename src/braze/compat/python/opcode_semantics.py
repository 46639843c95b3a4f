"""What instructions mean, over any kind of values: one definition for capture and for real frames.

    BINARY_OP  left right -- result      result = domain.binary(operator, left, right)

A meaning moves values on the stack; what is done to the values it leaves to a domain. Capture's
domain works on fake tensors and records; that of open frames works on the program's own objects. A
meaning is a function from a domain to a handler, made once, so that carrying out an instruction
costs no call more than a handler of its own. Jumps, loops, exceptions and variables have no meaning
here: how a frame goes on, and where its variables are, is the domain's own.

Nothing here imports torch, so that it is tested on each version of Python.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, final

from braze.compat.python.bytecode import Instruction
from braze.compat.python.bytecode_versions import BYTECODE
from braze.compat.python.hidden_frames import hide_frames
from braze.compat.python.opcodes import OPCODES, SPECIAL_METHODS


@final
class _Null:
    """Stands for the interpreter's NULL in a stack slot."""

    def __repr__(self) -> str:
        return "NULL"


NULL = _Null()


class StackFrame(Protocol):
    """What a meaning sees of a frame. stack: bottom first."""

    stack: list[Any]


Context = TypeVar("Context", contravariant=True)
Frame = TypeVar("Frame", bound=StackFrame, contravariant=True)
# The context that a domain is given with each operation.
Given = TypeVar("Given")


class Domain(Protocol[Context, Frame]):
    """Operations on one kind of values. The first argument is whatever the domain works with.

    operators: of BINARY_OP, by CPython's number. unary_operators: by opcode.
    compare: takes two operands off the frame's stack and leaves the comparison, its truth where
    `as_bool` is set. get_method: the function and its `self`, or NULL. special: a method of the
    class alone, bound. format: of the value that `convert` (or None) makes of a value.
    """

    operators: Sequence[Any]
    unary_operators: Mapping[str, Any]

    def binary(self, context: Context, operator: Any, left: Any, right: Any, /) -> Any: ...
    def unary(self, context: Context, operator: Any, value: Any, /) -> Any: ...
    def compare(self, context: Context, frame: Frame, sign: str, as_bool: bool, /) -> None: ...
    def is_same(self, context: Context, left: Any, right: Any, /) -> bool: ...
    def contains(self, context: Context, container: Any, value: Any, /) -> bool: ...
    def get_item(self, context: Context, container: Any, key: Any, /) -> Any: ...
    def store_item(self, context: Context, container: Any, key: Any, value: Any, /) -> None: ...
    def delete_item(self, context: Context, container: Any, key: Any, /) -> None: ...
    def get_attribute(self, context: Context, owner: Any, name: str, /) -> Any: ...
    def get_method(self, context: Context, owner: Any, name: str, /) -> tuple[Any, Any]: ...
    def store_attribute(self, context: Context, owner: Any, name: str, value: Any, /) -> None: ...
    def delete_attribute(self, context: Context, owner: Any, name: str, /) -> None: ...
    def special(self, context: Context, owner: Any, name: str, /) -> Any: ...
    def get_global(self, context: Context, frame: Frame, name: str, /) -> Any: ...
    def store_global(self, context: Context, frame: Frame, name: str, value: Any, /) -> None: ...
    def delete_global(self, context: Context, frame: Frame, name: str, /) -> None: ...
    def iterate(self, context: Context, iterable: Any, /) -> Any: ...
    def make_set(self, context: Context, items: list[Any], /) -> Any: ...
    def make_dict(self, context: Context, pairs: list[tuple[Any, Any]], /) -> Any: ...
    def join(self, context: Context, parts: list[Any], /) -> Any: ...
    def convert(self, context: Context, value: Any, convert: Any, /) -> Any: ...
    def format(self, context: Context, value: Any, convert: Any, spec: Any, /) -> Any: ...


Handler: TypeAlias = Callable[[Any, Any, Instruction], None]
Meaning: TypeAlias = Callable[[Domain[Any, Any]], Handler]
MEANINGS: dict[str, Meaning] = {}


def _meaning(*names: str) -> Callable[[Meaning], Meaning]:
    def register(meaning: Meaning) -> Meaning:
        for name in names:
            assert name not in MEANINGS, name
            MEANINGS[name] = meaning
        return meaning

    return register


def take(stack: list[object], count: int) -> list[Any]:
    """The topmost `count` values, bottom first, removed from the stack."""
    if not count:
        return []
    values = stack[-count:]
    del stack[-count:]
    return values


def too_many_values(count: int, cls: type, length: int) -> ValueError:
    """The error of unpacking an object of `cls` whose `length` is more than `count`."""
    told = BYTECODE.counts_unpacked and cls in (list, tuple, dict)
    got = f", got {length}" if told else ""
    return ValueError(f"too many values to unpack (expected {count}{got})")


# --- the stack -----------------------------------------------------------------------------------


@_meaning("LOAD_CONST")
def _load_const(domain: Domain[Given, StackFrame]) -> Handler:
    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        frame.stack.append(instruction.value)

    return handler


@_meaning("POP_TOP")
def _pop_top(domain: Domain[Given, StackFrame]) -> Handler:
    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        frame.stack.pop()

    return handler


@_meaning("PUSH_NULL")
def _push_null(domain: Domain[Given, StackFrame]) -> Handler:
    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        frame.stack.append(NULL)

    return handler


@_meaning("SWAP")
def _swap(domain: Domain[Given, StackFrame]) -> Handler:
    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        stack, depth = frame.stack, instruction.arg
        stack[-1], stack[-depth] = stack[-depth], stack[-1]

    return handler


@_meaning("COPY")
def _copy(domain: Domain[Given, StackFrame]) -> Handler:
    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        frame.stack.append(frame.stack[-instruction.arg])

    return handler


# --- operators -----------------------------------------------------------------------------------


@_meaning("BINARY_OP")
def _binary_op(domain: Domain[Given, StackFrame]) -> Handler:
    binary, operators = domain.binary, domain.operators

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        stack = frame.stack
        right = stack.pop()
        stack[-1] = binary(context, operators[instruction.arg], stack[-1], right)

    return handler


@_meaning("UNARY_NOT", "UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT")
def _unary_op(domain: Domain[Given, StackFrame]) -> Handler:
    unary, operators = domain.unary, domain.unary_operators

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        frame.stack[-1] = unary(context, operators[instruction.name], frame.stack[-1])

    return handler


@_meaning("COMPARE_OP")
def _compare_op(domain: Domain[Given, StackFrame]) -> Handler:
    compare = domain.compare

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        sign = dis.cmp_op[instruction.arg >> BYTECODE.compare_shift]
        compare(context, frame, sign, bool(instruction.arg & BYTECODE.compare_to_bool_bit))

    return handler


@_meaning("IS_OP")
def _is_op(domain: Domain[Given, StackFrame]) -> Handler:
    is_same = domain.is_same

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        right = frame.stack.pop()
        same = is_same(context, frame.stack[-1], right)
        frame.stack[-1] = same is not bool(instruction.arg)

    return handler


@_meaning("CONTAINS_OP")
def _contains_op(domain: Domain[Given, StackFrame]) -> Handler:
    contains = domain.contains

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        container = frame.stack.pop()
        found = contains(context, container, frame.stack[-1])
        frame.stack[-1] = found is not bool(instruction.arg)

    return handler


# --- items ---------------------------------------------------------------------------------------


@_meaning("BINARY_SUBSCR")
def _binary_subscr(domain: Domain[Given, StackFrame]) -> Handler:
    get_item = domain.get_item

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        key = frame.stack.pop()
        frame.stack[-1] = get_item(context, frame.stack[-1], key)

    return handler


@_meaning("BINARY_SLICE")
def _binary_slice(domain: Domain[Given, StackFrame]) -> Handler:
    get_item = domain.get_item

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        stack = frame.stack
        stop, start = stack.pop(), stack.pop()
        stack[-1] = get_item(context, stack[-1], slice(start, stop))

    return handler


@_meaning("STORE_SUBSCR")
def _store_subscr(domain: Domain[Given, StackFrame]) -> Handler:
    store_item = domain.store_item

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        stack = frame.stack
        key, container = stack.pop(), stack.pop()
        store_item(context, container, key, stack.pop())

    return handler


@_meaning("STORE_SLICE")
def _store_slice(domain: Domain[Given, StackFrame]) -> Handler:
    store_item = domain.store_item

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        stack = frame.stack
        stop, start, container = stack.pop(), stack.pop(), stack.pop()
        store_item(context, container, slice(start, stop), stack.pop())

    return handler


@_meaning("DELETE_SUBSCR")
def _delete_subscr(domain: Domain[Given, StackFrame]) -> Handler:
    delete_item = domain.delete_item

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        key = frame.stack.pop()
        delete_item(context, frame.stack.pop(), key)

    return handler


# --- attributes and globals ----------------------------------------------------------------------


@_meaning("LOAD_ATTR")
def _load_attr(domain: Domain[Given, StackFrame]) -> Handler:
    get_attribute, load_method = domain.get_attribute, _load_method(domain)

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        if BYTECODE.method_flag and instruction.arg & 1:
            load_method(context, frame, instruction)
        else:
            owner = frame.stack.pop()
            frame.stack.append(get_attribute(context, owner, instruction.value))

    return handler


@_meaning("LOAD_METHOD")
def _load_method(domain: Domain[Given, StackFrame]) -> Handler:
    get_method = domain.get_method

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        owner = frame.stack.pop()
        function, bound_to = get_method(context, owner, instruction.value)
        if BYTECODE.callable_first or bound_to is not NULL:
            frame.stack += (function, bound_to)
        else:
            frame.stack += (NULL, function)

    return handler


@_meaning("STORE_ATTR")
def _store_attr(domain: Domain[Given, StackFrame]) -> Handler:
    store_attribute = domain.store_attribute

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        owner = frame.stack.pop()
        store_attribute(context, owner, instruction.value, frame.stack.pop())

    return handler


@_meaning("DELETE_ATTR")
def _delete_attr(domain: Domain[Given, StackFrame]) -> Handler:
    delete_attribute = domain.delete_attribute

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        delete_attribute(context, frame.stack.pop(), instruction.value)

    return handler


@_meaning("LOAD_SPECIAL")
def _load_special(domain: Domain[Given, StackFrame]) -> Handler:
    special = domain.special

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        method = special(context, frame.stack[-1], SPECIAL_METHODS[instruction.arg])
        frame.stack[-1:] = (method, NULL)

    return handler


@_meaning("LOAD_GLOBAL")
def _load_global(domain: Domain[Given, StackFrame]) -> Handler:
    get_global = domain.get_global

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        value = get_global(context, frame, instruction.value)
        if not instruction.arg & 1:
            frame.stack.append(value)
        else:  # it is called
            frame.stack += (value, NULL) if BYTECODE.callable_first else (NULL, value)

    return handler


@_meaning("STORE_GLOBAL")
def _store_global(domain: Domain[Given, StackFrame]) -> Handler:
    store_global = domain.store_global

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        store_global(context, frame, instruction.value, frame.stack.pop())

    return handler


@_meaning("DELETE_GLOBAL")
def _delete_global(domain: Domain[Given, StackFrame]) -> Handler:
    delete_global = domain.delete_global

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        delete_global(context, frame, instruction.value)

    return handler


# --- building ------------------------------------------------------------------------------------


def _built(make: Callable[[Iterable[object]], object]) -> Meaning:
    def meaning(domain: Domain[Given, StackFrame]) -> Handler:
        def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
            frame.stack.append(make(take(frame.stack, instruction.arg)))

        return handler

    return meaning


_meaning("BUILD_TUPLE")(_built(tuple))
_meaning("BUILD_LIST")(_built(list))
_meaning("BUILD_SLICE")(_built(lambda bounds: slice(*bounds)))


@_meaning("BUILD_SET")
def _build_set(domain: Domain[Given, StackFrame]) -> Handler:
    make_set = domain.make_set

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        frame.stack.append(make_set(context, take(frame.stack, instruction.arg)))

    return handler


@_meaning("BUILD_MAP")
def _build_map(domain: Domain[Given, StackFrame]) -> Handler:
    make_dict = domain.make_dict

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        items = take(frame.stack, 2 * instruction.arg)
        frame.stack.append(make_dict(context, list(zip(items[::2], items[1::2]))))

    return handler


@_meaning("BUILD_CONST_KEY_MAP")
def _build_const_key_map(domain: Domain[Given, StackFrame]) -> Handler:
    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        names = frame.stack.pop()
        frame.stack.append(dict(zip(names, take(frame.stack, instruction.arg))))

    return handler


@_meaning("BUILD_STRING")
def _build_string(domain: Domain[Given, StackFrame]) -> Handler:
    join = domain.join

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        frame.stack.append(join(context, take(frame.stack, instruction.arg)))

    return handler


_CONVERSIONS: tuple[Any, ...] = (None, str, repr, ascii)


@_meaning("FORMAT_VALUE")
def _format_value(domain: Domain[Given, StackFrame]) -> Handler:
    format_ = domain.format

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        spec = frame.stack.pop() if instruction.arg & 4 else ""
        convert = _CONVERSIONS[instruction.arg & 3]
        frame.stack[-1] = format_(context, frame.stack[-1], convert, spec)

    return handler


@_meaning("CONVERT_VALUE")
def _convert_value(domain: Domain[Given, StackFrame]) -> Handler:
    convert = domain.convert

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        conversion = _CONVERSIONS[instruction.arg]
        frame.stack[-1] = convert(context, frame.stack[-1], conversion)

    return handler


@_meaning("FORMAT_SIMPLE")
def _format_simple(domain: Domain[Given, StackFrame]) -> Handler:
    format_ = domain.format

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        frame.stack[-1] = format_(context, frame.stack[-1], None, "")

    return handler


@_meaning("FORMAT_WITH_SPEC")
def _format_with_spec(domain: Domain[Given, StackFrame]) -> Handler:
    format_ = domain.format

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        spec = frame.stack.pop()
        frame.stack[-1] = format_(context, frame.stack[-1], None, spec)

    return handler


# --- loops ---------------------------------------------------------------------------------------

# What lies above an iterator in slots of its own: where iterators have an index, NULL says that
# this one is asked by `__next__`.
NO_INDEX = (NULL,) * (BYTECODE.iterator_slots - 1)


@_meaning("GET_ITER")
def _get_iter(domain: Domain[Given, StackFrame]) -> Handler:
    iterate = domain.iterate

    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        frame.stack[-1] = iterate(context, frame.stack[-1])
        frame.stack += NO_INDEX

    return handler


@_meaning("POP_ITER")
def _pop_iter(domain: Domain[Given, StackFrame]) -> Handler:
    def handler(context: Given, frame: StackFrame, instruction: Instruction) -> None:
        del frame.stack[-BYTECODE.iterator_slots :]

    return handler


# --- calls ---------------------------------------------------------------------------------------


def take_call(
    stack: list[Any], instruction: Instruction
) -> tuple[list[object], object, tuple[object, ...], dict[str, object]]:
    """Take the operands of CALL or CALL_KW off the stack: all of them, bottom first; then what is
    called, its arguments, its keywords."""
    count = instruction.arg + (3 if instruction.name == "CALL_KW" else 2)
    slots = stack[-count:]
    del stack[-count:]
    function, owner, *args = slots
    names = args.pop() if instruction.name == "CALL_KW" else instruction.keyword_names
    if not BYTECODE.callable_first and function is NULL:
        function, owner = owner, NULL
    keywords = {}
    if names:
        keywords = dict(zip(names, args[-len(names) :]))
        del args[-len(names) :]
    return slots, function, tuple(args) if owner is NULL else (owner, *args), keywords


def take_unpacked_call(
    stack: list[object], instruction: Instruction
) -> tuple[list[Any], Any, Any, Any]:
    """Take the operands of CALL_FUNCTION_EX off the stack: all of them, bottom first; then what is
    called, its arguments, its keywords."""
    slots = take(stack, OPCODES[instruction.name].effect.pops(instruction.arg))
    keywords = {} if len(slots) == 3 or slots[3] is NULL else slots[3]
    return slots, slots[0 if BYTECODE.callable_first else 1], slots[2], keywords


hide_frames(__name__, MEANINGS.values())
