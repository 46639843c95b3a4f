"""One bytecode instruction executed on a frame's real values, as the interpreter would.

A handler changes `frame.stack` and gives None (the next instruction follows), the index of the
instruction to jump to, or `Finished`. What the program raises comes out as it is. `RunNatively`
says that the interpreter itself had better do it; nothing has happened then.

Python functions are called through `frame.call`, by which they get graphs of their own.
"""

from __future__ import annotations

import builtins
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, final

from braze.compat.bytecode import Instruction
from braze.compat.bytecode_versions import BYTECODE
from braze.ir.frame import NULL
from braze.runtime.frame_calls import ExecutableFrame, RunNatively, call_in_frame, contents_of


@final
class Finished:
    """The frame returned `value`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


Handler: TypeAlias = Callable[[Any, Instruction], "int | Finished | None"]
HANDLERS: dict[str, Handler] = {}


def _handles(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = handler
        return handler

    return register


def take(stack: list[Any], count: int) -> list[Any]:
    """The topmost `count` values, bottom first, removed from the stack."""
    if not count:
        return []
    values = stack[-count:]
    del stack[-count:]
    return values


# --- calls ---------------------------------------------------------------------------------------


@_handles("CALL")
def _call(frame: ExecutableFrame, instruction: Instruction) -> None:
    arguments = take(frame.stack, instruction.arg)
    _apply(frame, arguments, instruction.keyword_names)


@_handles("CALL_KW")
def _call_with_keywords(frame: ExecutableFrame, instruction: Instruction) -> None:
    names = frame.stack.pop()
    _apply(frame, take(frame.stack, instruction.arg), names)


def _apply(frame: ExecutableFrame, arguments: list[Any], names: tuple[str, ...]) -> None:
    callable, first = _callable_pair(take(frame.stack, 2))
    if first is not NULL:
        arguments = [first, *arguments]
    split = len(arguments) - len(names)
    keywords = dict(zip(names, arguments[split:]))
    frame.stack.append(call_in_frame(frame, callable, tuple(arguments[:split]), keywords))


def _callable_pair(pair: list[Any]) -> tuple[Any, Any]:
    """(callable, self or NULL) of the two slots below a call's arguments."""
    lower, upper = pair
    if BYTECODE.callable_first:
        return lower, upper
    return (upper, NULL) if lower is NULL else (lower, upper)


@_handles("CALL_FUNCTION_EX")
def _call_unpacked(frame: ExecutableFrame, instruction: Instruction) -> None:
    keywords = frame.stack.pop() if instruction.arg & 1 else {}
    arguments = frame.stack.pop()
    callable, _ = _callable_pair(take(frame.stack, 2))
    iterable = isinstance(arguments, tuple) or hasattr(type(arguments), "__iter__")
    if not iterable or not isinstance(keywords, dict):
        raise RunNatively  # the interpreter's errors name the function
    frame.stack.append(call_in_frame(frame, callable, tuple(arguments), keywords))


@_handles("BEFORE_WITH")
def _before_with(frame: ExecutableFrame, instruction: Instruction) -> None:
    entered = frame.stack.pop()
    enter, leave = _special(entered, "__enter__"), _special(entered, "__exit__")
    frame.stack += [leave, frame.call(enter, (), {})]


def _special(value: Any, name: str) -> Any:
    cls = type(value)
    for klass in cls.__mro__:
        if name in klass.__dict__:
            found = klass.__dict__[name]
            bind = getattr(type(found), "__get__", None)
            return found if bind is None else bind(found, value, cls)
    raise RunNatively


# --- operators -----------------------------------------------------------------------------------

# In the order of CPython's NB_ numbers; the in-place forms follow.
_BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    operator.add,
    operator.and_,
    operator.floordiv,
    operator.lshift,
    operator.matmul,
    operator.mul,
    operator.mod,
    operator.or_,
    pow,
    operator.rshift,
    operator.sub,
    operator.truediv,
    operator.xor,
    operator.iadd,
    operator.iand,
    operator.ifloordiv,
    operator.ilshift,
    operator.imatmul,
    operator.imul,
    operator.imod,
    operator.ior,
    operator.ipow,
    operator.irshift,
    operator.isub,
    operator.itruediv,
    operator.ixor,
)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "UNARY_NOT": operator.not_,
    "UNARY_NEGATIVE": operator.neg,
    "UNARY_POSITIVE": operator.pos,
    "UNARY_INVERT": operator.invert,
    "TO_BOOL": bool,
    "GET_ITER": iter,
    "FORMAT_SIMPLE": format,
}


def _unary(function: Callable[[Any], Any]) -> Handler:
    def handler(frame: ExecutableFrame, instruction: Instruction) -> None:
        frame.stack[-1] = function(frame.stack[-1])

    return handler


for _name, _function in _UNARY.items():
    _handles(_name)(_unary(_function))


@_handles("BINARY_OP")
def _binary(frame: ExecutableFrame, instruction: Instruction) -> None:
    left, right = take(frame.stack, 2)
    frame.stack.append(_BINARY[instruction.arg](left, right))


@_handles("COMPARE_OP")
def _compare(frame: ExecutableFrame, instruction: Instruction) -> None:
    left, right = take(frame.stack, 2)
    result = _COMPARE[instruction.value](left, right)
    as_bool = instruction.arg & BYTECODE.compare_to_bool_bit
    frame.stack.append(bool(result) if as_bool else result)


@_handles("IS_OP")
def _is(frame: ExecutableFrame, instruction: Instruction) -> None:
    left, right = take(frame.stack, 2)
    frame.stack.append((left is right) is not bool(instruction.arg))


@_handles("CONTAINS_OP")
def _contains(frame: ExecutableFrame, instruction: Instruction) -> None:
    left, right = take(frame.stack, 2)
    frame.stack.append((left in right) is not bool(instruction.arg))


@_handles("BINARY_SUBSCR")
def _get_item(frame: ExecutableFrame, instruction: Instruction) -> None:
    container, key = take(frame.stack, 2)
    frame.stack.append(container[key])


@_handles("STORE_SUBSCR")
def _set_item(frame: ExecutableFrame, instruction: Instruction) -> None:
    value, container, key = take(frame.stack, 3)
    container[key] = value


@_handles("DELETE_SUBSCR")
def _delete_item(frame: ExecutableFrame, instruction: Instruction) -> None:
    container, key = take(frame.stack, 2)
    del container[key]


@_handles("BINARY_SLICE")
def _get_slice(frame: ExecutableFrame, instruction: Instruction) -> None:
    container, start, stop = take(frame.stack, 3)
    frame.stack.append(container[start:stop])


@_handles("STORE_SLICE")
def _set_slice(frame: ExecutableFrame, instruction: Instruction) -> None:
    value, container, start, stop = take(frame.stack, 4)
    container[start:stop] = value


# --- names and attributes ------------------------------------------------------------------------


@_handles("LOAD_ATTR")
def _get_attribute(frame: ExecutableFrame, instruction: Instruction) -> None:
    value = getattr(frame.stack.pop(), instruction.value)
    if BYTECODE.method_flag and instruction.arg & 1:
        frame.stack += [value, NULL] if BYTECODE.callable_first else [NULL, value]
    else:
        frame.stack.append(value)


@_handles("LOAD_METHOD")
def _get_method(frame: ExecutableFrame, instruction: Instruction) -> None:
    frame.stack[-1:] = [NULL, getattr(frame.stack[-1], instruction.value)]


@_handles("STORE_ATTR")
def _set_attribute(frame: ExecutableFrame, instruction: Instruction) -> None:
    value, target = take(frame.stack, 2)
    setattr(target, instruction.value, value)


@_handles("DELETE_ATTR")
def _delete_attribute(frame: ExecutableFrame, instruction: Instruction) -> None:
    delattr(frame.stack.pop(), instruction.value)


@_handles("LOAD_GLOBAL")
def _get_global(frame: ExecutableFrame, instruction: Instruction) -> None:
    value = _global(frame, instruction.value)
    if not instruction.arg & 1:
        frame.stack.append(value)
    else:
        frame.stack += [value, NULL] if BYTECODE.callable_first else [NULL, value]


def _global(frame: ExecutableFrame, name: str) -> Any:
    if name in frame.globals:
        return frame.globals[name]
    found = frame.globals.get("__builtins__", builtins)
    space = found if isinstance(found, dict) else vars(found)
    if name not in space:
        raise RunNatively
    return space[name]


@_handles("STORE_GLOBAL")
def _set_global(frame: ExecutableFrame, instruction: Instruction) -> None:
    frame.globals[instruction.value] = frame.stack.pop()


@_handles("DELETE_GLOBAL")
def _delete_global(frame: ExecutableFrame, instruction: Instruction) -> None:
    if instruction.value not in frame.globals:
        raise RunNatively
    del frame.globals[instruction.value]


@_handles("IMPORT_NAME")
def _import(frame: ExecutableFrame, instruction: Instruction) -> None:
    level, names = take(frame.stack, 2)
    load = _global(frame, "__import__")
    frame.stack.append(load(instruction.value, frame.globals, None, names, level))


@_handles("IMPORT_FROM")
def _import_from(frame: ExecutableFrame, instruction: Instruction) -> None:
    module = frame.stack[-1]
    try:
        frame.stack.append(getattr(module, instruction.value))
    except AttributeError:
        full_name = f"{getattr(module, '__name__', '')}.{instruction.value}"
        if full_name not in sys.modules:
            raise RunNatively from None
        frame.stack.append(sys.modules[full_name])


# --- local variables ---------------------------------------------------------------------------


@_handles("POP_TOP")
def _drop(frame: ExecutableFrame, instruction: Instruction) -> None:
    frame.stack.pop()


@_handles("STORE_FAST")
def _set_local(frame: ExecutableFrame, instruction: Instruction) -> None:
    _refuse_cells(frame, instruction.value)
    frame.locals[instruction.value] = frame.stack.pop()


@_handles("DELETE_FAST")
def _delete_local(frame: ExecutableFrame, instruction: Instruction) -> None:
    _refuse_cells(frame, instruction.value)
    if instruction.value not in frame.locals:
        raise RunNatively
    del frame.locals[instruction.value]


def _refuse_cells(frame: ExecutableFrame, name: str) -> None:
    """The variable of an inlined comprehension may hide a cell."""
    if name in frame.code.co_cellvars or NULL in frame.stack[-1:]:
        raise RunNatively


@_handles("STORE_DEREF")
def _set_cell(frame: ExecutableFrame, instruction: Instruction) -> None:
    frame.locals[instruction.value].cell_contents = frame.stack.pop()


@_handles("DELETE_DEREF")
def _delete_cell(frame: ExecutableFrame, instruction: Instruction) -> None:
    if not contents_of(frame.locals[instruction.value]):
        raise RunNatively
    del frame.locals[instruction.value].cell_contents


# --- jumps and loops -----------------------------------------------------------------------------


def _jump_if(wanted: Callable[[Any], bool]) -> Handler:
    def handler(frame: ExecutableFrame, instruction: Instruction) -> int | None:
        return instruction.target if wanted(frame.stack.pop()) else None

    return handler


for _condition, _wanted in {
    "TRUE": bool,
    "FALSE": operator.not_,
    "NONE": lambda value: value is None,
    "NOT_NONE": lambda value: value is not None,
}.items():
    _handles(
        f"POP_JUMP_IF_{_condition}",
        f"POP_JUMP_FORWARD_IF_{_condition}",
        f"POP_JUMP_BACKWARD_IF_{_condition}",
    )(_jump_if(_wanted))


def _jump_or_pop(wanted: Callable[[Any], bool]) -> Handler:
    def handler(frame: ExecutableFrame, instruction: Instruction) -> int | None:
        if wanted(frame.stack[-1]):
            return instruction.target
        frame.stack.pop()
        return None

    return handler


_handles("JUMP_IF_TRUE_OR_POP")(_jump_or_pop(bool))
_handles("JUMP_IF_FALSE_OR_POP")(_jump_or_pop(operator.not_))


@_handles("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def _jump(frame: ExecutableFrame, instruction: Instruction) -> int:
    return instruction.target


@_handles("FOR_ITER")
def _next(frame: ExecutableFrame, instruction: Instruction) -> int | None:
    try:
        frame.stack.append(type(frame.stack[-1]).__next__(frame.stack[-1]))
    except StopIteration:
        frame.stack.pop()
        # From 3.12 the target is END_FOR (3.13: END_FOR, POP_TOP), for compilers only.
        skipped = BYTECODE.for_iter_keeps_iterator + BYTECODE.callable_first
        return instruction.target + skipped
    return None


@_handles("RETURN_VALUE")
def _return(frame: ExecutableFrame, instruction: Instruction) -> Finished:
    return Finished(frame.stack.pop())


# --- unpacking, building, formatting -------------------------------------------------------------


@_handles("UNPACK_SEQUENCE")
def _unpack(frame: ExecutableFrame, instruction: Instruction) -> None:
    count = instruction.arg
    iterator = _iterator(frame.stack.pop())
    values = _exactly(iterator, count, f"expected {count}")
    for _ in iterator:
        raise ValueError(f"too many values to unpack (expected {count})")
    frame.stack += reversed(values)


@_handles("UNPACK_EX")
def _unpack_rest(frame: ExecutableFrame, instruction: Instruction) -> None:
    before, after = instruction.arg & 0xFF, instruction.arg >> 8
    iterator = _iterator(frame.stack.pop())
    expected = f"expected at least {before + after}"
    values: list[Any] = _exactly(iterator, before, expected)
    rest = list(iterator)
    if len(rest) < after:
        got = before + len(rest)
        raise ValueError(f"not enough values to unpack ({expected}, got {got})")
    tail = rest[len(rest) - after :]
    frame.stack += reversed([*values, rest[: len(rest) - after], *tail])


def _iterator(value: Any) -> Iterator[Any]:
    if not hasattr(type(value), "__iter__") and not hasattr(type(value), "__getitem__"):
        raise RunNatively
    return iter(value)


def _exactly(iterator: Iterator[Any], count: int, expected: str) -> list[Any]:
    values: list[Any] = []
    while len(values) < count:
        try:
            values.append(next(iterator))
        except StopIteration:
            text = f"not enough values to unpack ({expected}, got {len(values)})"
            raise ValueError(text) from None
    return values


def _build(make: Callable[[Iterable[Any]], Any]) -> Handler:
    def handler(frame: ExecutableFrame, instruction: Instruction) -> None:
        frame.stack.append(make(take(frame.stack, instruction.arg)))

    return handler


def _pairs(values: Iterable[Any]) -> dict[Any, Any]:
    flat = list(values)
    return dict(zip(flat[::2], flat[1::2]))


_handles("BUILD_TUPLE")(_build(tuple))
_handles("BUILD_LIST")(_build(list))
_handles("BUILD_SET")(_build(set))
_handles("BUILD_STRING")(_build("".join))
_handles("BUILD_SLICE")(_build(lambda values: slice(*values)))


@_handles("BUILD_MAP")
def _build_map(frame: ExecutableFrame, instruction: Instruction) -> None:
    frame.stack.append(_pairs(take(frame.stack, 2 * instruction.arg)))


@_handles("BUILD_CONST_KEY_MAP")
def _build_map_of_names(frame: ExecutableFrame, instruction: Instruction) -> None:
    names = frame.stack.pop()
    frame.stack.append(dict(zip(names, take(frame.stack, instruction.arg))))


def _extend(change: Callable[[Any, Any], Any]) -> Handler:
    def handler(frame: ExecutableFrame, instruction: Instruction) -> None:
        value = frame.stack.pop()
        if not hasattr(type(value), "__iter__"):
            raise RunNatively
        change(frame.stack[-instruction.arg], value)

    return handler


_handles("LIST_EXTEND")(_extend(list.extend))
_handles("SET_UPDATE")(_extend(set.update))
_handles("DICT_UPDATE")(_extend(dict.update))

_CONVERSIONS: tuple[Callable[[Any], Any], ...] = (lambda value: value, str, repr, ascii)


@_handles("FORMAT_VALUE")
def _format(frame: ExecutableFrame, instruction: Instruction) -> None:
    specification = frame.stack.pop() if instruction.arg & 4 else ""
    convert = _CONVERSIONS[instruction.arg & 3]
    frame.stack[-1] = format(convert(frame.stack[-1]), specification)


@_handles("CONVERT_VALUE")
def _convert(frame: ExecutableFrame, instruction: Instruction) -> None:
    frame.stack[-1] = _CONVERSIONS[instruction.arg](frame.stack[-1])


@_handles("FORMAT_WITH_SPEC")
def _format_with(frame: ExecutableFrame, instruction: Instruction) -> None:
    value, specification = take(frame.stack, 2)
    frame.stack.append(format(value, specification))
