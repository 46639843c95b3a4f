"""The truth of a value, and its length."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.torch_calls import check_original
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.objects.mapping_proxies import entries_of
from braze.capture.state.guard_context import CONSTANTS, TENSORS, is_identity
from braze.capture.state.side_effects import CONTAINERS, EXACT
from braze.capture.tensors.torch_check import truth_of
from braze.compat.python.stdlib import no_bool
from braze.compat.torch.aten import aten
from braze.ir.captured.guard import ABSENT
from braze.shapes.data_symbols import SymbolicTruth, Undecidable
from braze.tracing import DataDependent

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def truth(interpreter: Interpreter, value: Any) -> bool:
    """`bool(value)`; a tensor's breaks the graph."""
    cls = type(value)
    if cls is SymbolicTruth:
        return truth_of(interpreter, value)
    if cls in CONSTANTS:
        return bool(value)
    guard_context = interpreter.guard_context
    if type(value) in TENSORS:
        check_original(guard_context, "__bool__", value)
        return _tensor_truth(interpreter, value)
    if cls in EXACT:
        return (
            interpreter.side_effects.length(value) > 0
            if id(value) in guard_context.known
            else bool(value)
        )
    if is_identity(value) and not issubclass(type(value), type) and cls.__module__ == "builtins":
        return True
    method = guard_context.lookup(cls, "__bool__")
    if method is not ABSENT:
        if type(method) is types.FunctionType:
            found = interpreter.call(method, value)
            if type(found) is not bool:
                raise ProgramRaised(no_bool(guard_context.type_of(value), type(found)))
            return found
        return bool(interpreter.native(bool, value))
    if guard_context.lookup(cls, "__len__") is not ABSENT:
        return length(interpreter, value) > 0
    return True


_OF_COUNTS = {aten.eq.Scalar: operator.eq, aten.ne.Scalar: operator.ne, aten.gt.Scalar: operator.gt}
# The least and, beyond it, the greatest number that each may give.
_DRAWS = dict.fromkeys((aten.rand.default, aten.rand_like.default), (0.0, 1.0))
_EXACT_DRAWS = (torch.float32, torch.float64)  # others round to the upper end
# What a comparison is where the other number is at the lower end or below; at the upper or above.
_OF_DRAWS = {
    aten.lt.Scalar: (False, True),
    aten.le.Scalar: (None, True),
    aten.gt.Scalar: (None, False),
    aten.ge.Scalar: (True, False),
}


def _maker(interpreter: Interpreter, number: object) -> tuple[Any, Any]:
    """The operator and the arguments that gave a number of the graph; (None, ()) for an input."""
    for op, args, _, outputs, *_ in reversed(interpreter.tracer.recorder.calls):
        if outputs == (number,):
            return op, args
    return None, ()


def _truth_of_count(interpreter: Interpreter, value: Any) -> bool | None:
    """Of a comparison with zero of what is interpreted for zero, or for more."""
    op, args = _maker(interpreter, interpreter.tracer.value_of(value))
    is_known = op in _OF_COUNTS and args[0] in interpreter.known_counts and args[1] == 0
    return _OF_COUNTS[op](interpreter.known_counts[args[0]], 0) if is_known else None


def _truth_of_draw(interpreter: Interpreter, value: Any) -> bool | None:
    """Of a comparison of a random number with one that it cannot reach, as layers that are dropped
    with a probability of zero ask it."""
    op, args = _maker(interpreter, interpreter.tracer.value_of(value))
    if op not in _OF_DRAWS or type(args[1]) not in (int, float):
        return None
    drawn = _DRAWS.get(_maker(interpreter, args[0])[0])
    if drawn is None or args[0].type.dtype not in _EXACT_DRAWS:
        return None
    (least, end), (below, above) = drawn, _OF_DRAWS[op]
    return below if args[1] <= least else above if args[1] >= end else None


def _tensor_truth(interpreter: Interpreter, value: object) -> bool:
    if interpreter.known_counts:
        known = _truth_of_count(interpreter, value)
        if known is not None:
            return known
    try:
        return bool(value)
    except (DataDependent, Undecidable) as request:
        known = _truth_of_draw(interpreter, value)
        if known is not None:
            return known
        raise BreakRequested("data-dependent-branch", str(request)) from None
    except Exception as exception:
        raise ProgramRaised(exception) from None


class _Sized:
    """Of the length that a `__len__` gave: `len` says what is wrong with it."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __len__(self) -> int:
        return self._found


def length(interpreter: Interpreter, value: object) -> int:
    """`len(value)`."""
    cls = type(value)
    guard_context = interpreter.guard_context
    known = id(value) in guard_context.known
    if type(value) in TENSORS:
        check_original(guard_context, "__len__", value)
    if type(value) in TENSORS or (not known and cls in EXACT) or cls in CONSTANTS:
        return interpreter.native(len, value)
    if cls in EXACT:
        return interpreter.side_effects.length(value)
    method = guard_context.lookup(cls, "__len__")
    if type(method) is types.FunctionType:
        found = interpreter.call(method, value)
        return interpreter.native(len, _Sized(found))
    if known and issubclass(type(value), CONTAINERS):
        return interpreter.side_effects.length(value)
    value = entries_of(interpreter, value)
    if id(value) in guard_context.known:
        raise BreakRequested("unseen-callable", f"len of {cls.__qualname__}")
    return interpreter.native(len, value)
