"""Calls into torch's own compiler that a program makes inside of compiled code."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from braze.capture.calls.compile_time_calls import call_at_compile_time, is_compile_time_call
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.handlers.break_regions import enter_or_leave
from braze.capture.state.guard_context import is_constant
from braze.compat.torch.dynamo_interop import (
    COMPILER_ANSWERS,
    compiled_by_torch,
    is_disabled_by_torch,
    is_settings_method,
)
from braze.regions import error_on_graph_break

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_PYTHON_CALLABLES = (types.FunctionType, types.MethodType)


def ask_compiler(
    interpreter: Interpreter,
    function: types.FunctionType,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """A call into torch's own compiler: answered from a table, or a break. What torch's own
    modules ask of it (`torch.optim` breaks its graphs) is no business of Braze."""
    if is_disabled_by_torch(function):
        raise BreakRequested("disabled", f"{function.__qualname__}, by torch.compiler.disable")
    if compiled_by_torch(function) is not None:
        raise BreakRequested("not-inlined", f"{function.__qualname__}, compiled by torch.compile")
    if is_settings_method(function, args):
        enter_or_leave(interpreter, function, args)
        return None
    name = function.__name__
    if is_compile_time_call(function):
        return call_at_compile_time(interpreter, name, args, kwargs)
    caller = interpreter.frames[-1].globals.get("__name__", "")
    if name == "graph_break" and caller.startswith("torch."):
        return None
    if name == "disable" and args and isinstance(args[0], _PYTHON_CALLABLES):
        return _leave_out(interpreter, function, args, kwargs)
    if name == error_on_graph_break.__name__:
        return interpreter.call(error_on_graph_break, *args, **kwargs)
    if name not in COMPILER_ANSWERS:
        raise BreakRequested("explicit", f"{name}() of torch's own compiler")
    return COMPILER_ANSWERS[name]


def _leave_out(
    interpreter: Interpreter,
    disable: types.FunctionType,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """`disable(function)` in the frame, as FSDP2 says it around each hook: it gives a new function,
    calls of which break the graph. Without `recursive` it marks the function itself: a break."""
    others = (*args[1:], *kwargs.values())
    recursive = (*args[1:2], kwargs.get("recursive", True))[0]
    if recursive is not True or not all(map(is_constant, others)):
        raise BreakRequested("explicit", "disable() of torch's own compiler")
    made = interpreter.native(disable, *args, **kwargs)
    interpreter.guard_context.fresh[id(made)] = made
    interpreter.guard_context.left_out[id(made)] = (disable, args, kwargs), dict(vars(made))
    return made
