"""A bytecode interpreter for tests: stops a function before any of its instructions.

The instructions that the driver executes are the driver's own; the others are below.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any

from braze.compat.python.bytecode import Instruction, Program, decode
from braze.compat.python.bytecode_versions import BYTECODE
from braze.compat.python.code_objects import entry_offset
from braze.compat.python.opcode_semantics import take
from braze.ir.captured.frame import NULL
from braze.runtime.resume.frame_calls import RunNatively
from braze.runtime.resume.single_step import HANDLERS, Finished


class Raised(Exception):
    """An instruction raised and the simulation stops there."""


class Simulation:
    """One activation. `stack`, `locals` as the driver has them; `raised` counts exceptions."""

    def __init__(self, function: types.FunctionType, arguments: dict[str, Any]) -> None:
        self.program: Program = decode(function.__code__)
        self.code = function.__code__
        self.globals = function.__globals__
        self.locals = dict(arguments)
        self.locals.update(zip(function.__code__.co_freevars, function.__closure__ or ()))
        self.stack: list[Any] = []
        self.handled: list[BaseException] = []
        # MAKE_CELL stands before RESUME
        self.index = 0
        resume = self.program.index_at[entry_offset(function.__code__)]
        while self.index < resume:
            self.execute()
        self.raised: BaseException | None = None

    def call(self, callable: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return callable(*args, **kwargs)

    @property
    def instruction(self) -> Instruction:
        return self.program.instructions[self.index]

    def execute(self) -> Finished | None:
        """One instruction; raises what it raises, with the stack as before it."""
        instruction, before = self.instruction, list(self.stack)
        try:
            handler = EXTRA.get(instruction.name) or HANDLERS[instruction.name]
            result = handler(self, instruction)
        except RunNatively:
            self.stack = before
            result = NATIVE[instruction.name](self, instruction)
        except BaseException:
            self.stack = before
            raise
        if isinstance(result, Finished):
            return result
        self.index = self.index + 1 if result is None else result
        return None

    def step(self) -> Finished | None:
        """One instruction, exceptions handled as the frame's table says."""
        try:
            return self.execute()
        except Exception as exception:
            self.raised = exception
            region = self.instruction.region
            if region is None:
                raise
            del self.stack[region.depth :]
            if region.push_offset:
                self.stack.append(self.instruction.offset)
            self.stack.append(exception)
            self.index = region.target
            return None


def _load(frame: Simulation, name: str) -> None:
    if name not in frame.locals:
        raise UnboundLocalError(
            f"cannot access local variable '{name}' where it is not associated with a value"
        )
    frame.stack.append(frame.locals[name])


def _store(frame: Simulation, name: str) -> None:
    value = frame.stack.pop()
    if value is NULL:
        frame.locals.pop(name, None)
    else:
        frame.locals[name] = value


def load_fast(frame: Simulation, i: Instruction) -> None:
    _load(frame, i.value)


def load_two(frame: Simulation, i: Instruction) -> None:
    _load(frame, i.value[0])
    _load(frame, i.value[1])


def load_and_clear(frame: Simulation, i: Instruction) -> None:
    frame.stack.append(frame.locals.pop(i.value, NULL))


def store_fast(frame: Simulation, i: Instruction) -> None:
    _store(frame, i.value)


def store_load(frame: Simulation, i: Instruction) -> None:
    _store(frame, i.value[0])
    _load(frame, i.value[1])


def store_two(frame: Simulation, i: Instruction) -> None:
    _store(frame, i.value[0])
    _store(frame, i.value[1])


def delete_fast(frame: Simulation, i: Instruction) -> None:
    if i.value not in frame.locals:
        _load(frame, i.value)
    del frame.locals[i.value]


def make_cell(frame: Simulation, i: Instruction) -> None:
    if i.value in frame.locals:
        frame.locals[i.value] = types.CellType(frame.locals[i.value])
    else:
        frame.locals[i.value] = types.CellType()


def load_deref(frame: Simulation, i: Instruction) -> None:
    try:
        frame.stack.append(frame.locals[i.value].cell_contents)
    except ValueError:
        raise NameError(f"cell {i.value} is empty") from None


def store_deref(frame: Simulation, i: Instruction) -> None:
    frame.locals[i.value].cell_contents = frame.stack.pop()


def return_const(frame: Simulation, i: Instruction) -> Finished:
    return Finished(i.value)


_ATTRIBUTES = {1: "__defaults__", 2: "__kwdefaults__", 4: "__annotations__", 8: "closure"}


def make_function(frame: Simulation, i: Instruction) -> None:
    code = frame.stack.pop()
    if BYTECODE.function_attributes_apart:
        cells = tuple(types.CellType() for _ in code.co_freevars)
        frame.stack.append(types.FunctionType(code, frame.globals, closure=cells or None))
        return
    closure = frame.stack.pop() if i.arg & 8 else None
    annotations = frame.stack.pop() if i.arg & 4 else None
    keyword_defaults = frame.stack.pop() if i.arg & 2 else None
    defaults = frame.stack.pop() if i.arg & 1 else None
    function = types.FunctionType(code, frame.globals, code.co_name, defaults, closure)
    function.__kwdefaults__ = keyword_defaults
    assert not annotations
    frame.stack.append(function)


def set_function_attribute(frame: Simulation, i: Instruction) -> None:
    value, function = take(frame.stack, 2)
    if i.arg == 8:
        made = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, value
        )
        made.__kwdefaults__ = function.__kwdefaults__
        function = made
    else:
        setattr(function, _ATTRIBUTES[i.arg], value)
    frame.stack.append(function)


def list_append(frame: Simulation, i: Instruction) -> None:
    value = frame.stack.pop()
    frame.stack[-i.arg].append(value)


def set_add(frame: Simulation, i: Instruction) -> None:
    value = frame.stack.pop()
    frame.stack[-i.arg].add(value)


def map_add(frame: Simulation, i: Instruction) -> None:
    key, value = take(frame.stack, 2)
    frame.stack[-i.arg][key] = value


def dict_merge(frame: Simulation, i: Instruction) -> None:
    value = frame.stack.pop()
    frame.stack[-i.arg].update(value)


def list_to_tuple(frame: Simulation, i: Instruction) -> None:
    frame.stack[-1] = tuple(frame.stack[-1])


def intrinsic(frame: Simulation, i: Instruction) -> None:
    assert i.arg == 6, i.arg
    frame.stack[-1] = tuple(frame.stack[-1])


def raise_varargs(frame: Simulation, i: Instruction) -> None:
    if i.arg == 0:
        raise frame.handled[-1]
    values = take(frame.stack, i.arg)
    if i.arg == 2:
        raise values[0] from values[1]
    raise values[0]


def push_exc_info(frame: Simulation, i: Instruction) -> None:
    exception = frame.stack.pop()
    frame.handled.append(exception)
    frame.stack += [exception, exception]


def pop_except(frame: Simulation, i: Instruction) -> None:
    frame.stack.pop()
    frame.handled.pop()


def check_exc_match(frame: Simulation, i: Instruction) -> None:
    kind = frame.stack.pop()
    frame.stack.append(isinstance(frame.stack[-1], kind))


def reraise(frame: Simulation, i: Instruction) -> None:
    raise frame.stack[-1]


def with_except_start(frame: Simulation, i: Instruction) -> None:
    exception, leave = frame.stack[-1], frame.stack[-3 - BYTECODE.exit_slots]
    frame.stack.append(leave(type(exception), exception, exception.__traceback__))


def match_sequence(frame: Simulation, i: Instruction) -> None:
    value = frame.stack[-1]
    frame.stack.append(isinstance(value, Sequence) and not isinstance(value, str | bytes))


def match_mapping(frame: Simulation, i: Instruction) -> None:
    frame.stack.append(isinstance(frame.stack[-1], Mapping))


def match_keys(frame: Simulation, i: Instruction) -> None:
    subject, keys = frame.stack[-2:]
    found = all(key in subject for key in keys)
    frame.stack.append(tuple(subject[key] for key in keys) if found else None)


def match_class(frame: Simulation, i: Instruction) -> None:
    subject, cls, names = take(frame.stack, 3)
    if not isinstance(subject, cls):
        frame.stack.append(None)
        return
    if cls in (int, str) and i.arg == 1:
        frame.stack.append((subject,))
        return
    wanted = (*cls.__match_args__[: i.arg], *names) if i.arg else names
    frame.stack.append(tuple(getattr(subject, name) for name in wanted))


def get_len(frame: Simulation, i: Instruction) -> None:
    frame.stack.append(len(frame.stack[-1]))


def super_attribute(frame: Simulation, i: Instruction) -> None:
    callable, cls, instance = take(frame.stack, 3)
    value = getattr(callable(cls, instance), i.value)
    if i.arg & 1:
        frame.stack += [value, NULL] if BYTECODE.callable_first else [NULL, value]
    else:
        frame.stack.append(value)


def nothing(frame: Simulation, i: Instruction) -> None:
    return None


def fail_globally(frame: Simulation, i: Instruction) -> None:
    raise NameError(f"name '{i.value}' is not defined")


NATIVE: dict[str, Any] = {"LOAD_GLOBAL": fail_globally}
EXTRA: dict[str, Any] = {
    "LOAD_FAST": load_fast,
    "LOAD_CLOSURE": load_fast,
    "LOAD_FAST_LOAD_FAST": load_two,
    "LOAD_FAST_AND_CLEAR": load_and_clear,
    "STORE_FAST": store_fast,
    "STORE_FAST_LOAD_FAST": store_load,
    "STORE_FAST_STORE_FAST": store_two,
    "DELETE_FAST": delete_fast,
    "MAKE_CELL": make_cell,
    "LOAD_DEREF": load_deref,
    "STORE_DEREF": store_deref,
    "END_FOR": HANDLERS["POP_TOP"],
    "RETURN_CONST": return_const,
    "MAKE_FUNCTION": make_function,
    "SET_FUNCTION_ATTRIBUTE": set_function_attribute,
    "LIST_APPEND": list_append,
    "SET_ADD": set_add,
    "MAP_ADD": map_add,
    "DICT_MERGE": dict_merge,
    "LIST_TO_TUPLE": list_to_tuple,
    "CALL_INTRINSIC_1": intrinsic,
    "RAISE_VARARGS": raise_varargs,
    "PUSH_EXC_INFO": push_exc_info,
    "POP_EXCEPT": pop_except,
    "CHECK_EXC_MATCH": check_exc_match,
    "RERAISE": reraise,
    "WITH_EXCEPT_START": with_except_start,
    "MATCH_SEQUENCE": match_sequence,
    "MATCH_MAPPING": match_mapping,
    "MATCH_KEYS": match_keys,
    "MATCH_CLASS": match_class,
    "GET_LEN": get_len,
    "LOAD_SUPER_ATTR": super_attribute,
    "RESUME": nothing,
}
