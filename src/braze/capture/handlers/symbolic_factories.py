"""Factories whose C++ takes a size as a number: the operator is recorded as it is.

torch.linspace(0, 1, n)    aten.linspace of a symbolic `n`: one compile for every `n` above one
torch.triu_indices(n, n)   aten.triu_indices, whose result's size follows from `n`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call
from braze.compat.torch.aten import aten
from braze.shapes.symbolic import ProgramInt, plain_size

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_OPTIONS = frozenset({"dtype", "device"})


@answers(torch.linspace)
def linspace(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """From numbers to numbers, in symbolically many steps."""
    named = {**dict(zip(("start", "end", "steps"), args)), **kwargs}
    options = {name: named[name] for name in named.keys() & _OPTIONS if named[name] is not None}
    steps = named.get("steps")
    plain = len(args) <= 3 and named.keys() <= {"start", "end", "steps", *_OPTIONS}
    ends = [type(named.get(name)) in (int, float) for name in ("start", "end")]
    dtype = options.get("dtype", torch.get_default_dtype())
    plain = plain and all(ends) and dtype.is_floating_point
    if type(steps) is not ProgramInt or not plain or _runs_eagerly(interpreter):
        return leaf_call(interpreter, torch.linspace, args, kwargs)
    numbers = (named["start"], named["end"], steps)
    options = {**options, "dtype": dtype}
    return _recorded(interpreter, torch.linspace, aten.linspace.default, numbers, options)


def _indices_of(function: object, op: object) -> None:
    @answers(function)
    def indices(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Of a triangle of a matrix whose sizes are symbols."""
        named = {**dict(zip(("row", "col", "offset"), args)), **kwargs}
        options = {name: named[name] for name in named.keys() & _OPTIONS if named[name] is not None}
        numbers: tuple[Any, ...] = named.get("row"), named.get("col"), named.get("offset", 0)
        plain = len(args) <= 3 and named.keys() <= {"row", "col", "offset", *_OPTIONS}
        kinds = set(map(type, numbers))
        if (
            not plain
            or not {ProgramInt} <= kinds <= {int, ProgramInt}
            or _runs_eagerly(interpreter)
        ):
            return leaf_call(interpreter, function, args, kwargs)
        if not (numbers[0] >= 0 and numbers[1] >= 0):
            return leaf_call(interpreter, function, args, kwargs)
        options = {"dtype": torch.int64, **options}
        return _recorded(interpreter, function, op, numbers, options)


_indices_of(torch.tril_indices, aten.tril_indices.default)
_indices_of(torch.triu_indices, aten.triu_indices.default)


def _runs_eagerly(interpreter: Interpreter) -> bool:
    return bool(interpreter.frames[-1].runs_eagerly)


def _recorded(
    interpreter: Interpreter,
    function: Any,
    op: object,
    numbers: tuple[object, ...],
    options: dict[str, object],
) -> object:
    tracer = interpreter.tracer
    tracer.origin = interpreter.origin(f"torch.{function.__name__}")
    options = {"device": torch.get_default_device(), **options}
    return tracer.call(op, tuple(map(plain_size, numbers)), options)
