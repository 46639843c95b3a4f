"""eval, exec, compile, globals(), vars(), dir(): code that a program makes is interpreted too."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from braze.capture.calls.c_functions import call_natively
from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.frames.dispatch_table import steps_of
from braze.capture.frames.frame import COROUTINE_FLAGS, GENERATOR_FLAGS, Frame
from braze.capture.handlers.operator_module import sorted_items
from braze.capture.objects.attribute_load import load_attribute
from braze.capture.objects.iteration import native_iterable
from braze.capture.opcodes.calls import local_variables
from braze.capture.state.guard_context import BUILTINS, CONSTANTS
from braze.ir.captured.source import ObjectSource

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# `from __future__` features of a code object, which what it compiles inherits.
_FEATURES = 0x1FF0000


@answers(globals)
def globals_of(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if args or kwargs:
        return interpreter.native(globals, *args, **kwargs)
    return space_of(interpreter, interpreter.frames[-1].globals)


@answers(vars)
def vars_of(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if not args:
        return local_variables(interpreter, interpreter.frames[-1])
    try:
        return load_attribute(interpreter, args[0], "__dict__")
    except ProgramRaised as raised:
        if not isinstance(raised.exception, AttributeError):
            raise
    raise ProgramRaised(TypeError("vars() argument must have __dict__ attribute"))


@answers(dir)
def dir_of(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    if not args:
        space = local_variables(interpreter, interpreter.frames[-1])
        keys = interpreter.call(interpreter.attribute(space, "keys"))
        return _in_order(interpreter, keys)
    (owner,) = args
    method = interpreter.guard_context.lookup(type(owner), "__dir__")
    if type(method) is types.FunctionType:
        return _in_order(interpreter, interpreter.call(method, owner))
    if type(owner) not in CONSTANTS:  # any object's class may come to have more
        raise BreakRequested("unseen-callable", f"dir() of a {type(owner).__qualname__}")
    return call_natively(interpreter, dir, args, kwargs)


def _in_order(interpreter: Interpreter, names: Any) -> list[object]:
    names = interpreter.native(list, native_iterable(interpreter, names))
    return sorted_items(interpreter, names, None, False)


def space_of(interpreter: Interpreter, space: dict[str, object]) -> dict[str, Any]:
    """A module's dict as an object that the program has."""
    guard_context = interpreter.guard_context
    if id(space) in guard_context.fresh:
        return space
    label = f"globals of {space.get('__name__', '?')}"
    return guard_context.track(space, ObjectSource(label, space))


@answers(compile)
def compile_source(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    names = ("source", "filename", "mode", "flags", "dont_inherit")
    given = {**dict(zip(names, args)), **kwargs}
    if not given.pop("dont_inherit", False):
        features = interpreter.frames[-1].code.co_flags & _FEATURES
        flags = given.get("flags", 0)
        if not isinstance(flags, int):
            raise BreakRequested("unseen-callable", f"compile() with flags of {type(flags)}")
        given["flags"] = flags | features
    return interpreter.native(compile, **given, dont_inherit=True)


@answers(eval)
def evaluate(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    return _run(interpreter, "eval", args, kwargs)


@answers(exec)
def execute(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    if kwargs:
        raise BreakRequested("unsupported-function", "exec() with a closure")
    _run(interpreter, "exec", args, kwargs)


def _run(
    interpreter: Interpreter, mode: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> object:
    given = dict(zip(("source", "globals", "locals"), args))
    given.update(kwargs)
    source = given["source"]
    code = source
    if type(source) is not types.CodeType:
        text = source.lstrip(" \t") if isinstance(source, str) and mode == "eval" else source
        code = compile_source(interpreter, (text, "<string>", mode), {})
    if code.co_flags & (GENERATOR_FLAGS | COROUTINE_FLAGS) or code.co_freevars:
        raise BreakRequested("unsupported-function", f"{mode}() of code of a function")
    space, names = _spaces(interpreter, mode, given.get("globals"), given.get("locals"))
    frame = Frame(code, space, steps_of(code), None)
    frame.names = names
    return interpreter.run(frame)


def _spaces(
    interpreter: Interpreter, mode: str, space: object, names: object
) -> tuple[dict[str, object], object]:
    """Globals and locals for the code: the caller's where none are given."""
    caller = interpreter.frames[-1]
    if space is None:
        names = local_variables(interpreter, caller) if names is None else names
        return caller.globals, names
    if not isinstance(space, dict):
        message = {
            "eval": "globals must be a real dict; try eval(code, {}, mapping)",
            "exec": f"exec() globals must be a dict, not {type(space).__name__}",
        }[mode]
        raise ProgramRaised(TypeError(message))
    guard_context = interpreter.guard_context
    if id(space) not in guard_context.known:
        guard_context.fresh[id(space)] = space
        space.setdefault("__builtins__", BUILTINS)
    elif "__builtins__" not in space:
        raise BreakRequested("unsupported-function", f"{mode}() in a dict from outside")
    return space, space if names is None else names


@answers(types.FunctionType)
def function_of_code(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A function; a dict that becomes its globals is written to for real if it is made here."""
    made = interpreter.native(types.FunctionType, *args, **kwargs)
    guard_context, space = interpreter.guard_context, made.__globals__
    if all(space is not frame.globals for frame in interpreter.frames):
        if id(space) in guard_context.known:
            raise BreakRequested("unsupported-function", "a function with globals from outside")
        guard_context.fresh[id(space)] = space
    guard_context.fresh[id(made)] = made
    return made
