"""NumPy's functions of single numbers, as in `scores / np.sqrt(width)`: computed when a frame is
captured, where they give one of NumPy's floats, which is a Python float, too."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from braze.capture.arrays.fake_array import FakeArray
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.guard_by_parts import is_numpys_float
from braze.capture.state.guard_context import NUMBERS
from braze.compat.numpy.interface import DISPATCHER, UFUNC
from braze.ir.captured.guard import GuardKind

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_PLAIN = frozenset({bool, int, float})


def is_numpys_function(cls: type) -> bool:
    """Whether instances are NumPy's functions of each element."""
    return (cls.__module__, cls.__qualname__) == ("numpy", "ufunc")


def guard_numpys_function(interpreter: Interpreter, function: object) -> None:
    """What is called where this was found stays it. Breaks the graph for instances of another class
    whose calls are C code."""
    if not is_numpys_function(type(function)):
        raise BreakRequested("unseen-callable", repr(type(function)))
    guard_context = interpreter.guard_context
    guard_context.guard(guard_context.source_of(function), GuardKind.ID_MATCH, function)


def call_on_numbers(
    interpreter: Interpreter, function: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """The function of numbers. Anything else, and what NumPy warns of, breaks the graph: a number
    of NumPy's that is no Python number, and what is not finite."""
    plain = [_plain(interpreter, value) for value in args]
    numpy: Any = sys.modules["numpy"]
    # One that a program made of a Python function (`np.frompyfunc`) may do anything.
    own = getattr(numpy, function.__name__, None) is function
    if own and not kwargs and all(type(v) in _PLAIN or is_numpys_float(type(v)) for v in plain):
        with numpy.errstate(all="ignore"):  # it warns when it is really called
            found = interpreter.native(function, *plain)
        if is_numpys_float(type(found)) and math.isfinite(found):
            return found
    raise BreakRequested("unseen-callable", f"numpy.{function.__name__}")


def _plain(interpreter: Interpreter, value: object) -> Any:
    """The number at hand, of those that stand for several."""
    convert = NUMBERS.get(type(value))
    return value if convert is None else interpreter.native(convert, value)


# What a function of each element takes as arrays.
_ARRAY_LIKE = frozenset({FakeArray, list, tuple})


def call_numpy(
    interpreter: Interpreter, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A function of NumPy's: of numbers it is computed now, of arrays in the graph."""
    guard_context = interpreter.guard_context
    if id(function) in guard_context.known:
        guard_context.guard(guard_context.source_of(function), GuardKind.ID_MATCH, function)
    if type(function) is UFUNC and not any(type(value) in _ARRAY_LIKE for value in args):
        return call_on_numbers(interpreter, function, args, kwargs)
    return interpreter.arrays.call(function, args, kwargs)


# By the classes of NumPy's functions.
NUMPY_CALLS: dict[type, Any] = {UFUNC: call_numpy, DISPATCHER: call_numpy}
