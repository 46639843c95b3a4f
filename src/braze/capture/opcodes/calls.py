"""Instructions that call, and those that make functions and classes."""

from __future__ import annotations

import builtins
import types
from typing import TYPE_CHECKING, Any

from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.frames.dispatch_table import opcode
from braze.capture.frames.frame import Frame, Unread
from braze.capture.objects.attribute_load import load_super_attribute
from braze.capture.objects.iteration import counted_iterable, is_uniterable
from braze.capture.opcodes.variables import read_local
from braze.capture.state.reentrant_calls import code_of
from braze.capture.state.special_methods import compares_its_own_way
from braze.capture.tensors.super_proxy import make_super
from braze.compat.python.annotations import annotations_of, set_annotations
from braze.compat.python.bytecode import Instruction
from braze.compat.python.bytecode_versions import BYTECODE
from braze.compat.python.opcode_semantics import take_call, take_unpacked_call
from braze.ir.captured.frame import NULL
from braze.ir.captured.guard import ABSENT
from braze.shapes.symbolic import ProgramInt

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_DEFAULTS, _KEYWORD_DEFAULTS, _ANNOTATIONS, _CLOSURE, _ANNOTATE = 1, 2, 4, 8, 16


@opcode("CALL", "CALL_KW")
def call(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> bool:
    stack = frame.stack
    operands, function, args, kwargs = take_call(stack, instruction)
    if function is super and not args:
        stack.append(_implicit_super(interpreter, frame))
        return False
    if function is locals or (function is vars and not args):
        stack.append(local_variables(interpreter, frame))
        return False
    if function is range and _is_iterated_next(frame):
        args = counted(args)
    return bool(interpreter.enter(frame, function, args, kwargs, operands))


_EMPTY_CONTAINERS = frozenset({"BUILD_LIST", "BUILD_SET", "BUILD_MAP"})


def _is_iterated_next(frame: Frame) -> bool:
    """Whether what a call gives is iterated at once, and seen by nothing else. Python 3.15 makes
    the container of a comprehension in between, which is empty: one with items would hold it."""
    index = frame.index
    while True:
        following = frame.steps[index][1]
        is_empty = following.name in _EMPTY_CONTAINERS and following.arg == 0
        if not is_empty and following.name not in ("LOAD_FAST_AND_CLEAR", "SWAP"):
            return bool(following.name == "GET_ITER")
        index += 1


def counted(args: tuple[Any, ...]) -> tuple[object, ...]:
    """The arguments of a range that is only iterated, in numbers, where it goes in steps to a
    symbol: `range(0, n, 128)` ties the program to how many steps that is, not to `n`."""
    if len(args) != 3 or type(args[0]) is not int or type(args[2]) is not int:
        return args
    start, stop, step = args
    if type(stop) is not ProgramInt or -2 < step < 2:
        return args
    count = int(-((start - stop) // step))
    return start, start + max(count, 0) * step, step


def local_variables(interpreter: Interpreter, frame: Frame) -> object:
    """`locals()`: the variables that have a value, those in cells too, as the frame orders them."""
    if frame.names is frame.globals:
        return interpreter.call(globals)
    if frame.names is not None:
        return frame.names
    code = frame.code
    found: dict[str, Any] = {}
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        if name in frame.locals:
            found[name] = read_local(interpreter, frame, name)
        elif name in frame.cells:
            value = interpreter.side_effects.read_cell(frame.cells[name])
            if value is not ABSENT:
                found[name] = value
    return found


def _with_positional(function: Any, args: Any) -> None:
    """Raise what CPython raises before the call."""
    function(*args)


@opcode("CALL_FUNCTION_EX")
def call_function_ex(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> bool:
    operands, function, positional, keywords = take_unpacked_call(frame.stack, instruction)
    if is_uniterable(interpreter, positional):
        interpreter.native(_with_positional, function, positional)
    args = interpreter.native(tuple, counted_iterable(interpreter, positional))
    kwargs = dict(interpreter.side_effects.contents(keywords))
    if not all(isinstance(name, str) for name in kwargs):
        raise ProgramRaised(TypeError("keywords must be strings"))
    for name in kwargs:
        if type(name) is not str and compares_its_own_way(type(name)):
            raise BreakRequested("unseen-python", f"{type(name).__name__}.__eq__, of a keyword")
    return bool(interpreter.enter(frame, function, args, kwargs, operands))


def _implicit_super(interpreter: Interpreter, frame: Frame) -> super:
    cell = frame.cells.get("__class__")
    if cell is None:
        raise ProgramRaised(RuntimeError("super(): __class__ cell not found"))
    cls = interpreter.side_effects.read_cell(cell)
    if not frame.code.co_argcount:
        raise ProgramRaised(RuntimeError("super(): no arguments"))
    if cls is ABSENT:
        raise ProgramRaised(RuntimeError("super(): empty __class__ cell"))
    name = frame.code.co_varnames[0]
    if name not in frame.locals and name not in frame.cells:
        raise ProgramRaised(RuntimeError("super(): arg[0] deleted"))
    owner = frame.locals.get(name)
    if owner is None and name in frame.cells:
        owner = interpreter.side_effects.read_cell(frame.cells[name])
    if type(owner) is Unread:
        owner = interpreter.guard_context.wrap_value(owner.value, owner.source)
        frame.locals[name] = owner
    return make_super(interpreter, cls, owner)


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    owner = frame.stack.pop()
    cls = frame.stack.pop()
    frame.stack.pop()
    value = load_super_attribute(
        interpreter, make_super(interpreter, cls, owner), instruction.value
    )
    if instruction.arg & 1:
        pair = (value, NULL) if BYTECODE.callable_first else (NULL, value)
        frame.stack.extend(pair)
    else:
        frame.stack.append(value)


# --- making functions and classes ----------------------------------------------------------------


@opcode("MAKE_FUNCTION")
def make_function(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    stack = frame.stack
    code = stack.pop()
    flags = 0 if BYTECODE.function_attributes_apart else instruction.arg
    closure = stack.pop() if flags & _CLOSURE else None
    annotations = stack.pop() if flags & _ANNOTATIONS else None
    keyword_defaults = stack.pop() if flags & _KEYWORD_DEFAULTS else None
    defaults = stack.pop() if flags & _DEFAULTS else None
    if closure is None and code.co_freevars:
        closure = tuple([types.CellType() for _ in code.co_freevars])
    function = types.FunctionType(code, frame.globals, code.co_name, defaults, closure)
    function.__qualname__ = code.co_qualname
    if keyword_defaults is not None:
        function.__kwdefaults__ = keyword_defaults
    if annotations:
        function.__annotations__ = _annotations(annotations)
    interpreter.guard_context.fresh[id(function)] = function
    stack.append(function)


def _annotations(value: Any) -> dict[str, object]:
    if issubclass(type(value), tuple):
        return dict(zip(value[::2], value[1::2]))
    return dict(value)


@opcode("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(
    interpreter: Interpreter, frame: Frame, instruction: Instruction
) -> None:
    function = frame.stack.pop()
    value = frame.stack.pop()
    if instruction.arg == _CLOSURE:
        made = types.FunctionType(
            code_of(function), function.__globals__, function.__name__, None, value
        )
        made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
        made.__qualname__ = function.__qualname__
        set_annotations(made, annotations_of(function))
        interpreter.guard_context.fresh[id(made)] = made
        function = made
    elif instruction.arg == _ANNOTATIONS:
        function.__annotations__ = _annotations(value)
    elif instruction.arg == _ANNOTATE:
        set_annotations(function, value)
    elif instruction.arg == _KEYWORD_DEFAULTS:
        function.__kwdefaults__ = value
    else:
        function.__defaults__ = value
    frame.stack.append(function)


@opcode("LOAD_BUILD_CLASS")
def load_build_class(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.append(builtins.__build_class__)
