"""The truth of a value, and its length."""

from __future__ import annotations

import operator
import types
from typing import Any

import torch

from braze.capture.overlay import CONTAINERS, EXACT
from braze.capture.promises import truth_of
from braze.capture.signals import BreakRequested, ProgramRaised
from braze.capture.world import CONSTANTS, TENSORS, is_identity
from braze.ir.guard import ABSENT
from braze.shapes.data_symbols import SymbolicTruth
from braze.standins import DataDependent


def truth(interpreter: Any, value: Any) -> bool:
    """`bool(value)`; a tensor's breaks the graph."""
    cls = type(value)
    if cls is SymbolicTruth:
        return truth_of(interpreter, value)
    if cls in CONSTANTS:
        return bool(value)
    world = interpreter.world
    if type(value) in TENSORS:
        return _tensor_truth(interpreter, value)
    if cls in EXACT:
        return interpreter.overlay.length(value) > 0 if id(value) in world.known else bool(value)
    if is_identity(value) and not issubclass(type(value), type) and cls.__module__ == "builtins":
        return True
    method = world.lookup(cls, "__bool__")
    if method is not ABSENT:
        if isinstance(method, types.FunctionType):
            found = interpreter.call(method, value)
            if type(found) is not bool:
                message = f"__bool__ should return bool, returned {type(found).__name__}"
                raise ProgramRaised(TypeError(message))
            return found
        return bool(interpreter.native(bool, value))
    if world.lookup(cls, "__len__") is not ABSENT:
        return length(interpreter, value) > 0
    return True


_OF_COUNTS = {
    torch.ops.aten.eq.Scalar: operator.eq,
    torch.ops.aten.ne.Scalar: operator.ne,
    torch.ops.aten.gt.Scalar: operator.gt,
}


def _known_truth(interpreter: Any, value: Any) -> bool | None:
    """Of a comparison with zero of what is interpreted for zero, or for more."""
    number = interpreter.tracer.value_of(value)
    for op, args, _, outputs, *_ in reversed(interpreter.tracer.recorder.calls):
        if outputs == (number,):
            is_known = op in _OF_COUNTS and args[0] in interpreter.known_counts and args[1] == 0
            return _OF_COUNTS[op](interpreter.known_counts[args[0]], 0) if is_known else None
    return None


def _tensor_truth(interpreter: Any, value: Any) -> bool:
    if interpreter.known_counts:
        known = _known_truth(interpreter, value)
        if known is not None:
            return known
    try:
        return bool(value)
    except DataDependent as request:
        raise BreakRequested("data-dependent-branch", str(request)) from None
    except Exception as exception:
        raise ProgramRaised(exception) from None


class _Sized:
    """Of the length that a `__len__` gave: `len` says what is wrong with it."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __len__(self) -> int:
        return self._found


def length(interpreter: Any, value: Any) -> int:
    """`len(value)`."""
    cls = type(value)
    world = interpreter.world
    known = id(value) in world.known
    if type(value) in TENSORS or (not known and cls in EXACT) or cls in CONSTANTS:
        return interpreter.native(len, value)
    if cls in EXACT:
        return interpreter.overlay.length(value)
    method = world.lookup(cls, "__len__")
    if isinstance(method, types.FunctionType):
        found = interpreter.call(method, value)
        return interpreter.native(len, _Sized(found))
    if known and issubclass(type(value), CONTAINERS):
        return interpreter.overlay.length(value)
    if known:
        raise BreakRequested("unseen-callable", f"len of {cls.__qualname__}")
    return interpreter.native(len, value)
