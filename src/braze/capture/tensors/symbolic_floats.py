"""Python floats that a captured program computes with and that are not known: `item()` of numbers
on the CPU, and floats from outside that change from call to call.

A float from outside is guarded by value until it has changed between two compiles of the place;
then it is passed to the graph, as a 0-dim tensor (`GuardContext.adopt`). An optimizer's learning
rate is
passed from the first compile on.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.c_functions import call_natively
from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call
from braze.compat.torch.aten import aten
from braze.compat.torch.registered_ops import PYTHON_FUNCTIONS
from braze.shapes.symbolic import ProgramInt
from braze.tracing.symbolic.symbolic_float import (
    SymbolicFloat,
    calculated,
    chosen,
    float_of,
    holds_number,
    is_from_outside,
    is_guarded_positive,
    is_safe,
    number_of,
)

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@answers(torch.Tensor.item)
def item(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    """Of a floating point tensor with one element on the CPU, a symbolic float."""
    tensor = args[0]
    if kwargs or len(args) > 1 or not is_number(interpreter, tensor):
        return leaf_call(interpreter, torch.Tensor.item, args, kwargs)
    interpreter.tracer.origin = interpreter.origin("Tensor.item")
    return number_of(interpreter.tracer, tensor)


def is_number(interpreter: Interpreter, tensor: object) -> bool:
    """Whether the number that a tensor holds is computed with in the graph."""
    tracer = interpreter.tracer
    if interpreter.transforms or not holds_number(tracer, tensor):
        return False
    return tracer.known_data(tensor) is None


def _function(python: Callable[..., float], op: object) -> None:
    """A function of `math`; of a symbolic float it is an operator of the graph."""

    @answers(python)
    def apply(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
        args = tuple([float_size(interpreter, value) for value in args])
        if len(args) == 1 and is_from_outside(args[0]) and not kwargs:
            safe = python in _SAFE and args[0].is_positive
            if safe or (python in _SAFE_TO_INFINITY and _is_positive(interpreter, args[0])):
                return interpreter.native(calculated, op, args, python)
            return interpreter.native(python, interpreter.native(float, args[0]))
        if len(args) == 1 and type(args[0]) is SymbolicFloat and not kwargs:
            return interpreter.native(calculated, op, args, python)
        return call_natively(interpreter, python, args, kwargs)


def _is_positive(interpreter: Interpreter, number: object) -> bool:
    found: bool = interpreter.native(is_guarded_positive, number)
    return found


# What neither raises nor overflows for a positive number, and of that what takes infinity, too.
_SAFE = (math.sqrt, math.log, math.sin, math.cos, math.tanh)
_SAFE_TO_INFINITY = (math.sqrt, math.log, math.tanh)


for _name in "sqrt exp log sin cos tanh".split():
    _function(getattr(math, _name), PYTHON_FUNCTIONS[getattr(aten, _name).default])


@answers(math.pow)
def power(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """As the operator, of floats; of a base that is not positive it raises where that does not."""
    found = tuple([float_size(interpreter, value) for value in args])
    kinds = {type(value) for value in found}
    if kwargs or len(found) != 2 or SymbolicFloat not in kinds or not kinds <= {*_FLOATS, int}:
        return call_natively(interpreter, math.pow, args, kwargs)
    base, exponent = [float(x) if type(x) is int and abs(x) < 1 << 53 else x for x in found]
    is_open = type(base) is SymbolicFloat and not base.is_positive
    if int in (type(base), type(exponent)) or not (
        _is_positive(interpreter, base) if is_open else is_safe(base)
    ):
        return call_natively(interpreter, math.pow, args, kwargs)
    return interpreter.native(operator.pow, base, exponent)


# --- floats of sizes -----------------------------------------------------------------------------

_ARITHMETIC = frozenset({"__add__", "__sub__", "__mul__", "__truediv__", "__pow__"})
_FLOATS = (float, SymbolicFloat)


def float_size(interpreter: Interpreter, value: object) -> object:
    """A symbolic size as a symbolic float; anything else as it is."""
    if type(value) is ProgramInt and interpreter.tracer.gives_numbers:
        return interpreter.native(float_of, interpreter.tracer, value)
    return value


def with_float_sizes(
    interpreter: Interpreter, method: str, left: object, right: object
) -> tuple[object, object]:
    """The operands of an operator, sizes as floats where its result is one."""
    if method not in _ARITHMETIC:
        return left, right
    gives_float = (
        method == "__truediv__"
        or type(left) in _FLOATS
        or type(right) in _FLOATS
        or (method == "__pow__" and type(right) is int and right < 0)
    )
    kinds = (int, ProgramInt, *_FLOATS)
    if not gives_float or type(left) not in kinds or type(right) not in kinds:
        return left, right
    return float_size(interpreter, left), float_size(interpreter, right)


def whole_part(interpreter: Interpreter, number: object, up: bool = False) -> object:
    """`math.floor(number)` (or `math.ceil`) of a quotient of sizes, a size; else None."""
    if type(number) is not SymbolicFloat or number.ratio is None or not number.is_positive:
        return None
    over, under = number.ratio
    if up:
        return interpreter.native(lambda: -(-over // under))
    return interpreter.native(operator.floordiv, over, under)


def _rounding(python: Callable[[float], int], up: bool) -> None:
    @answers(python)
    def apply(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        found = whole_part(interpreter, args[0], up) if len(args) == 1 and not kwargs else None
        return call_natively(interpreter, python, args, kwargs) if found is None else found


_rounding(math.floor, up=False)
_rounding(math.ceil, up=True)


@answers(torch.sym_float)
def symbolic_float(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`float(n)` too. Where graphs compute no numbers, the size is one value from here on."""
    if len(args) == 1 and type(args[0]) is ProgramInt:
        found = float_size(interpreter, args[0])
        return interpreter.native(float, found) if found is args[0] else found
    return call_natively(interpreter, torch.sym_float, args, kwargs)


def extremum(interpreter: Interpreter, items: Any, sign: str) -> object:
    """`min()` or `max()` of floats among which are symbolic ones. The graph chooses as Python does:
    the later one only where it is less (or greater), so that of equal ones, and beside NaN, the
    first one stays."""
    compare, python = (aten.gt.Tensor, max) if sign == ">" else (aten.lt.Tensor, min)

    def choose(best: Any, item: Any) -> object:
        if SymbolicFloat not in (type(best), type(item)):
            return python(best, item)
        return interpreter.native(chosen, compare, best, item, python)

    return functools.reduce(choose, items)
