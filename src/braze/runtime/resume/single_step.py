"""One bytecode instruction executed on a frame's real values, as the interpreter would.

A handler changes `frame.stack` and gives None (the next instruction follows), the index of the
instruction to jump to, or `Finished`. What the program raises comes out as it is. `RunNatively`
says that the interpreter itself had better do it; nothing has happened then.

What most instructions mean is written in `braze.compat.python.opcode_semantics`; here are the
values, and what
concerns the frame itself. Python functions are called through `frame.call`, by which they get
graphs of their own.
"""

from __future__ import annotations

import builtins
import operator
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

from braze.compat.python.bytecode import Instruction
from braze.compat.python.bytecode_versions import BYTECODE
from braze.compat.python.hidden_frames import hide_frames
from braze.compat.python.opcode_semantics import (
    MEANINGS,
    NULL,
    Meaning,
    take,
    take_call,
    take_unpacked_call,
    too_many_values,
)
from braze.compat.python.templates import interpolation, template
from braze.runtime.resume.frame_calls import (
    ExecutableFrame,
    RunNatively,
    call_in_frame,
    contents_of,
)


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


# --- calls ---------------------------------------------------------------------------------------


@_handles("CALL", "CALL_KW")
def _call(frame: ExecutableFrame, instruction: Instruction) -> None:
    _, callable, args, kwargs = take_call(frame.stack, instruction)
    frame.stack.append(call_in_frame(frame, callable, args, kwargs))


@_handles("CALL_FUNCTION_EX")
def _call_unpacked(frame: ExecutableFrame, instruction: Instruction) -> None:
    _, callable, arguments, keywords = take_unpacked_call(frame.stack, instruction)
    iterable = isinstance(arguments, tuple) or hasattr(type(arguments), "__iter__")
    if not iterable or not isinstance(keywords, dict):
        raise RunNatively  # the interpreter's errors name the function
    frame.stack.append(call_in_frame(frame, callable, tuple(arguments), keywords))


@_handles("BEFORE_WITH")
def _before_with(frame: ExecutableFrame, instruction: Instruction) -> None:
    entered = frame.stack.pop()
    enter, leave = _special(entered, "__enter__"), _special(entered, "__exit__")
    frame.stack += [leave, frame.call(enter, (), {})]


def _special(value: object, name: str) -> object:
    cls = type(value)
    for klass in cls.__mro__:
        if name in klass.__dict__:
            found = klass.__dict__[name]
            bind = getattr(type(found), "__get__", None)
            return found if bind is None else bind(found, value, cls)
    raise RunNatively


# --- operators and other values ------------------------------------------------------------------

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
    operator.getitem,
)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}


@final
class RealValues:
    """The domain of the program's own objects. The first argument of each operation is the frame
    that carries it out."""

    operators: Sequence[Any] = _BINARY
    unary_operators: Mapping[str, Any] = {
        "UNARY_NOT": operator.not_,
        "UNARY_NEGATIVE": operator.neg,
        "UNARY_POSITIVE": operator.pos,
        "UNARY_INVERT": operator.invert,
    }

    @staticmethod
    def binary(frame: ExecutableFrame, operator: Any, left: Any, right: Any, /) -> object:
        """`left operator right`."""
        return operator(left, right)

    @staticmethod
    def unary(frame: ExecutableFrame, operator: Any, value: Any, /) -> object:
        """`operator value`."""
        return operator(value)

    @staticmethod
    def compare(frame: ExecutableFrame, _: ExecutableFrame, sign: str, as_bool: bool, /) -> None:
        """A comparison of the two topmost operands."""
        left, right = take(frame.stack, 2)
        result = _COMPARE[sign](left, right)
        frame.stack.append(bool(result) if as_bool else result)

    @staticmethod
    def is_same(frame: ExecutableFrame, left: object, right: object, /) -> bool:
        """`left is right`."""
        return left is right

    @staticmethod
    def contains(frame: ExecutableFrame, container: Any, value: Any, /) -> bool:
        """`value in container`."""
        return value in container

    @staticmethod
    def get_item(frame: ExecutableFrame, container: Any, key: Any, /) -> object:
        """`container[key]`."""
        return container[key]

    @staticmethod
    def store_item(frame: ExecutableFrame, container: Any, key: Any, value: object, /) -> None:
        """`container[key] = value`."""
        container[key] = value

    @staticmethod
    def delete_item(frame: ExecutableFrame, container: Any, key: Any, /) -> None:
        """`del container[key]`."""
        del container[key]

    @staticmethod
    def get_attribute(frame: ExecutableFrame, owner: object, name: str, /) -> object:
        """`owner.name`."""
        return getattr(owner, name)

    @staticmethod
    def get_method(frame: ExecutableFrame, owner: object, name: str, /) -> tuple[object, object]:
        """`owner.name`, bound."""
        return getattr(owner, name), NULL

    @staticmethod
    def store_attribute(frame: ExecutableFrame, owner: object, name: str, value: object, /) -> None:
        """`owner.name = value`."""
        setattr(owner, name, value)

    @staticmethod
    def delete_attribute(frame: ExecutableFrame, owner: object, name: str, /) -> None:
        """`del owner.name`."""
        delattr(owner, name)

    @staticmethod
    def special(frame: ExecutableFrame, owner: object, name: str, /) -> object:
        """A method that only the class is asked for, bound; RunNatively where there is none."""
        return _special(owner, name)

    @staticmethod
    def get_global(frame: ExecutableFrame, _: ExecutableFrame, name: str, /) -> object:
        """A global or builtin; RunNatively where there is none."""
        return _global(frame, name)

    @staticmethod
    def store_global(frame: ExecutableFrame, _: ExecutableFrame, name: str, value: Any, /) -> None:
        """`global name; name = value`."""
        frame.globals[name] = value

    @staticmethod
    def delete_global(frame: ExecutableFrame, _: ExecutableFrame, name: str, /) -> None:
        """`global name; del name`; RunNatively where there is none."""
        if name not in frame.globals:
            raise RunNatively
        del frame.globals[name]

    @staticmethod
    def iterate(frame: ExecutableFrame, iterable: Any, /) -> object:
        """`iter(iterable)`."""
        return iter(iterable)

    @staticmethod
    def make_set(frame: ExecutableFrame, items: list[object], /) -> set[object]:
        """A set."""
        return set(items)

    @staticmethod
    def make_dict(frame: ExecutableFrame, pairs: list[tuple[object, object]], /) -> object:
        """A dict."""
        return dict(pairs)

    @staticmethod
    def join(frame: ExecutableFrame, parts: list[Any], /) -> Any:
        """The parts of an f-string as one text."""
        return "".join(parts)

    @staticmethod
    def convert(frame: ExecutableFrame, value: Any, convert: Any, /) -> Any:
        """What `!s`, `!r` or `!a` makes of a value."""
        return convert(value)

    @staticmethod
    def format(frame: ExecutableFrame, value: Any, convert: Any, spec: Any, /) -> str:
        """A value, or what `convert` makes of it, as a field of an f-string."""
        return format(value if convert is None else convert(value), spec)


def _on_real_values(meaning: Meaning) -> Handler:
    handler = meaning(RealValues())
    return lambda frame, instruction: handler(frame, frame, instruction)


for _name, _meaning in MEANINGS.items():
    _handles(_name)(_on_real_values(_meaning))


@_handles("TO_BOOL")
def _to_bool(frame: ExecutableFrame, instruction: Instruction) -> None:
    frame.stack[-1] = bool(frame.stack[-1])


# --- names and attributes ------------------------------------------------------------------------


def _global(frame: ExecutableFrame, name: str) -> Any:
    if name in frame.globals:
        return frame.globals[name]
    found = frame.globals.get("__builtins__", builtins)
    space = found if isinstance(found, dict) else vars(found)
    if name not in space:
        raise RunNatively
    return space[name]


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


def _load(frame: ExecutableFrame, name: str) -> None:
    if name not in frame.locals:
        raise RunNatively
    frame.stack.append(frame.locals[name])


def _store(frame: ExecutableFrame, name: str) -> None:
    """Set a variable, or after an inlined comprehension unset it again. Its variables may hide a
    cell."""
    if name in frame.code.co_cellvars:
        raise RunNatively
    value = frame.stack.pop()
    if value is NULL:
        frame.locals.pop(name, None)
    else:
        frame.locals[name] = value


@_handles("LOAD_FAST", "LOAD_CLOSURE")
def _load_local(frame: ExecutableFrame, instruction: Instruction) -> None:
    _load(frame, instruction.value)


@_handles("LOAD_FAST_AND_CLEAR")
def _load_and_clear(frame: ExecutableFrame, instruction: Instruction) -> None:
    if instruction.value in frame.code.co_cellvars:
        raise RunNatively
    frame.stack.append(frame.locals.pop(instruction.value, NULL))


@_handles("STORE_FAST", "STORE_FAST_MAYBE_NULL")
def _set_local(frame: ExecutableFrame, instruction: Instruction) -> None:
    _store(frame, instruction.value)


@_handles("LOAD_FAST_LOAD_FAST")
def _load_two(frame: ExecutableFrame, instruction: Instruction) -> None:
    for name in instruction.value:
        _load(frame, name)


@_handles("STORE_FAST_LOAD_FAST")
def _store_and_load(frame: ExecutableFrame, instruction: Instruction) -> None:
    stored, loaded = instruction.value
    if stored != loaded and loaded not in frame.locals:
        raise RunNatively
    _store(frame, stored)
    _load(frame, loaded)


@_handles("STORE_FAST_STORE_FAST")
def _store_two(frame: ExecutableFrame, instruction: Instruction) -> None:
    if any(name in frame.code.co_cellvars for name in instruction.value):
        raise RunNatively
    for name in instruction.value:
        _store(frame, name)


@_handles("DELETE_FAST")
def _delete_local(frame: ExecutableFrame, instruction: Instruction) -> None:
    name = instruction.value
    if name in frame.code.co_cellvars or name not in frame.locals:
        raise RunNatively
    del frame.locals[name]


@_handles("LOAD_DEREF")
def _load_cell(frame: ExecutableFrame, instruction: Instruction) -> None:
    contents = contents_of(frame.locals[instruction.value])
    if not contents:
        raise RunNatively
    frame.stack += contents


@_handles("STORE_DEREF")
def _set_cell(frame: ExecutableFrame, instruction: Instruction) -> None:
    frame.locals[instruction.value].cell_contents = frame.stack.pop()


@_handles("DELETE_DEREF")
def _delete_cell(frame: ExecutableFrame, instruction: Instruction) -> None:
    if not contents_of(frame.locals[instruction.value]):
        raise RunNatively
    del frame.locals[instruction.value].cell_contents


# --- jumps and loops -----------------------------------------------------------------------------


def _jump_if(wanted: Callable[[object], bool]) -> Handler:
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
        f"POP_JUMP_BACKWARD_IF_{_condition}",
    )(_jump_if(_wanted))


def _jump_or_pop(wanted: Callable[[object], bool]) -> Handler:
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
    slots = BYTECODE.iterator_slots
    iterator = frame.stack[-slots]
    try:
        frame.stack.append(type(iterator).__next__(iterator))
    except StopIteration:
        take(frame.stack, slots)
        # From 3.12 the target is END_FOR (3.13: and POP_TOP, 3.14: POP_ITER), for compilers only.
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
    unpacked = frame.stack.pop()
    iterator = _iterator(unpacked)
    values = _exactly(iterator, count, f"expected {count}")
    for _ in iterator:
        cls = type(unpacked)
        raise too_many_values(count, cls, len(unpacked) if cls in (list, tuple, dict) else 0)
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


def _iterator(value: Any) -> Iterator[object]:
    if not hasattr(type(value), "__iter__") and not hasattr(type(value), "__getitem__"):
        raise RunNatively
    return iter(value)


def _exactly(iterator: Iterator[object], count: int, expected: str) -> list[object]:
    values: list[Any] = []
    while len(values) < count:
        try:
            values.append(next(iterator))
        except StopIteration:
            text = f"not enough values to unpack ({expected}, got {len(values)})"
            raise ValueError(text) from None
    return values


@_handles("BUILD_TEMPLATE")
def _build_template(frame: ExecutableFrame, instruction: Instruction) -> None:
    frame.stack.append(template(*take(frame.stack, 2)))


@_handles("BUILD_INTERPOLATION")
def _build_interpolation(frame: ExecutableFrame, instruction: Instruction) -> None:
    specification = frame.stack.pop() if instruction.arg & 1 else ""
    value, text = take(frame.stack, 2)
    frame.stack.append(interpolation(value, text, instruction.arg >> 2, specification))


def _extend(change: Callable[[Any, Any], Any]) -> Handler:
    def handler(frame: ExecutableFrame, instruction: Instruction) -> None:
        value = frame.stack.pop()
        if not hasattr(type(value), "__iter__"):
            raise RunNatively
        change(frame.stack[-instruction.arg], value)

    return handler


@_handles("LIST_APPEND")
def _append(frame: ExecutableFrame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    frame.stack[-instruction.arg].append(value)


@_handles("SET_ADD")
def _add(frame: ExecutableFrame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    frame.stack[-instruction.arg].add(value)


@_handles("MAP_ADD")
def _set_entry(frame: ExecutableFrame, instruction: Instruction) -> None:
    key, value = take(frame.stack, 2)
    frame.stack[-instruction.arg][key] = value


@_handles("DICT_MERGE")
def _merge(frame: ExecutableFrame, instruction: Instruction) -> None:
    mapping = frame.stack.pop()
    merged = frame.stack[-instruction.arg]
    if type(mapping) is not dict or not merged.keys().isdisjoint(mapping):
        raise RunNatively  # the interpreter's errors name the function
    merged.update(mapping)


@_handles("LIST_TO_TUPLE")
def _to_tuple(frame: ExecutableFrame, instruction: Instruction) -> None:
    frame.stack[-1] = tuple(frame.stack[-1])


@_handles("GET_LEN")
def _length(frame: ExecutableFrame, instruction: Instruction) -> None:
    frame.stack.append(len(frame.stack[-1]))


_handles("LIST_EXTEND")(_extend(list.extend))
_handles("SET_UPDATE")(_extend(set.update))
_handles("DICT_UPDATE")(_extend(dict.update))


# --- functions -----------------------------------------------------------------------------------


# Flags of MAKE_FUNCTION, in the order in which their values are popped: the attribute, or "".
_MADE_WITH = {8: "", 4: "__annotations__", 2: "__kwdefaults__", 1: "__defaults__"}


@_handles("MAKE_FUNCTION")
def _make_function(frame: ExecutableFrame, instruction: Instruction) -> None:
    stack = frame.stack
    code = stack.pop()
    flags = 0 if BYTECODE.function_attributes_apart else instruction.arg
    if code.co_freevars and not flags & 8:
        raise RunNatively  # a closure that is set later
    values = {name: stack.pop() for bit, name in _MADE_WITH.items() if flags & bit}
    closure = values.pop("", None)
    function = types.FunctionType(code, frame.globals, code.co_name, None, closure)
    for name, value in values.items():
        pairs = name == "__annotations__" and isinstance(value, tuple)
        setattr(function, name, dict(zip(value[::2], value[1::2])) if pairs else value)
    stack.append(function)


hide_frames(__name__, HANDLERS.values())
