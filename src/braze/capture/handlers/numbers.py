"""int, float, complex, round, divmod, pow and abs: numbers, and objects that say what theirs is."""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.c_functions import call_natively
from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import check_original, leaf_call
from braze.capture.objects.operators import OPERATORS, UNARY, Operator, binary, unary
from braze.capture.state.guard_context import CONSTANTS, NUMBERS, TENSORS
from braze.capture.tensors.data_dependent_scalars import (
    read_number,
    read_whole_number,
    reads_number,
)
from braze.capture.tensors.symbolic_floats import is_number, symbolic_float, whole_part
from braze.compat.torch.ambient_state import call_untraced
from braze.shapes.symbolic import ProgramInt
from braze.tracing.symbolic.symbolic_float import SymbolicFloat

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def _conversion(cls: type, method: str) -> Callable[..., object]:
    def convert(
        interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
    ) -> object:
        alone = len(args) == 1 and not kwargs
        if cls is int and alone and type(args[0]) is ProgramInt:
            return args[0]
        if alone and type(args[0]) in TENSORS:
            check_original(interpreter.guard_context, method, args[0])
            if args[0].requires_grad:
                _warn_of_history(interpreter, cls)
        if alone and reads_number(interpreter, cls, args[0]):
            return read_number(interpreter, cls, args[0])
        if cls is int and alone and type(args[0]) is SymbolicFloat:
            found = whole_part(interpreter, args[0])
            if found is None and args[0].hint is None and interpreter.tracer.gives_integers:
                return read_whole_number(interpreter, args[0].tensor)
            return interpreter.native(int, args[0]) if found is None else found
        if cls is float and alone:
            if type(args[0]) is ProgramInt:
                return symbolic_float(interpreter, args, kwargs)
            if type(args[0]) is SymbolicFloat:
                return args[0]
            if is_number(interpreter, args[0]):
                return interpreter.call(torch.Tensor.item, args[0])
        if all(type(value) in CONSTANTS for value in (*args, *kwargs.values())):
            return interpreter.native(cls, *args, **kwargs)
        if args and type(args[0]) in TENSORS:
            return leaf_call(interpreter, cls, args, kwargs)
        own = interpreter.guard_context.lookup(type(args[0]), method) if alone else None
        if type(own) is not types.FunctionType:
            return call_natively(interpreter, cls, args, kwargs)
        found = interpreter.call(own, *args)
        if type(found) in (cls, ProgramInt) or interpreter.guard_context.type_of(found) is cls:
            return found
        return interpreter.native(cls, _giving(type(args[0]), method, found))

    return convert


def _warn_of_history(interpreter: Interpreter, cls: type) -> None:
    """Let PyTorch warn, once a process, that Python makes a number of a tensor with gradients; not
    where that is an error, which later calls do not raise."""
    if any(action == "error" for action, *_ in warnings.filters):
        return
    leaf = call_untraced(torch.ones, ((),), {"requires_grad": True})
    call_untraced(interpreter.native, (cls, leaf), {})


def _giving(cls: type, method: str, found: object) -> object:
    """What answers as an object of the program's did, so that Python says what is wrong with the
    answer, in words that name the program's class."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (), {**names, method: lambda self: found})()


for _cls, _method in ((int, "__int__"), (float, "__float__"), (complex, "__complex__")):
    answers(_cls)(_conversion(_cls, _method))


@answers(round)
def round_of(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if args and type(args[0]) in TENSORS:
        return leaf_call(interpreter, round, args, kwargs)
    if args and type(args[0]) in NUMBERS:
        return interpreter.native(round, *args, **kwargs)
    own = interpreter.guard_context.lookup(type(args[0]), "__round__") if args else None
    if type(own) is types.FunctionType:
        given = {**dict(zip(("ndigits",), args[1:])), **kwargs}
        rest = () if given.get("ndigits") is None else (given["ndigits"],)
        return interpreter.call(own, args[0], *rest)
    return call_natively(interpreter, round, args, kwargs)


_DIVMOD = Operator(divmod, "__divmod__", "__rdivmod__", sign="divmod()")


@answers(divmod)
def divmod_of(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if len(args) != 2 or kwargs:
        return interpreter.native(divmod, *args, **kwargs)
    return binary(interpreter, _DIVMOD, *args)


@answers(torch.Size.numel)
def count_of(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    """Of sizes among which are symbols: C would ask for their numbers."""
    if len(args) == 1 and ProgramInt in map(type, args[0]):
        return interpreter.native(math.prod, args[0])
    return interpreter.native(torch.Size.numel, *args, **kwargs)


@answers(pow)
def power(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    given = {**dict(zip(("base", "exp", "mod"), args)), **kwargs}
    if given.keys() == {"base", "exp"}:
        return binary(interpreter, OPERATORS["**"], given["base"], given["exp"])
    base = type(given.get("base"))
    own = None if base is ProgramInt else interpreter.guard_context.lookup(base, "__pow__")
    if len(args) == 3 and type(own) is types.FunctionType:
        return interpreter.call(own, *args)
    return call_natively(interpreter, pow, args, kwargs)


@answers(abs)
def abs_of(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    return unary(interpreter, UNARY["__abs__"], args[0])
