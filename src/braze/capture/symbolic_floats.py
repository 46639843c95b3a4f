"""Python floats that a captured program computes with and that are not known: `item()` of numbers
on the CPU, and floats from outside that change from call to call.

A float from outside is guarded by value until it has changed between two compiles of the place;
then it is passed to the graph, as a 0-dim tensor (`World.adopt`). An optimizer's learning rate is
passed from the first compile on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from braze.capture.handler_table import answers
from braze.capture.leaf_calls import leaf_call
from braze.standins.numbers import (
    SymbolicFloat,
    calculated,
    chosen,
    holds_number,
    is_from_outside,
    number_of,
)

aten = torch.ops.aten


@answers(torch.Tensor.item)
def item(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of a floating point tensor with one element on the CPU, a symbolic float."""
    tensor = args[0]
    if kwargs or len(args) > 1 or not is_number(interpreter, tensor):
        return leaf_call(interpreter, torch.Tensor.item, args, kwargs)
    interpreter.tracer.origin = interpreter.origin("Tensor.item")
    return number_of(interpreter.tracer, tensor)


def is_number(interpreter: Any, tensor: Any) -> bool:
    """Whether the number that a tensor holds is computed with in the graph."""
    tracer = interpreter.tracer
    if interpreter.transforms or not holds_number(tracer, tensor):
        return False
    return tracer.known_data(tensor) is None


def _function(python: Callable[..., float], op: Any) -> None:
    """A function of `math`; of a symbolic float it is an operator of the graph."""

    @answers(python)
    def apply(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) == 1 and is_from_outside(args[0]) and not kwargs:
            return interpreter.native(python, interpreter.native(float, args[0]))
        if len(args) == 1 and type(args[0]) is SymbolicFloat and not kwargs:
            return interpreter.native(calculated, op, args, python)
        return interpreter.native(python, *args, **kwargs)


for _name in "sqrt exp log sin cos tanh".split():
    _function(getattr(math, _name), getattr(aten, _name).default)


def extremum(interpreter: Any, items: Any, sign: str) -> Any:
    """`min()` or `max()` of floats among which are symbolic ones. The graph chooses as Python does:
    the later one only where it is less (or greater), so that of equal ones, and beside NaN, the
    first one stays."""
    compare, python = (aten.gt.Tensor, max) if sign == ">" else (aten.lt.Tensor, min)

    def choose(best: Any, item: Any) -> Any:
        if SymbolicFloat not in (type(best), type(item)):
            return python(best, item)
        return interpreter.native(chosen, compare, best, item, python)

    return functools.reduce(choose, items)
