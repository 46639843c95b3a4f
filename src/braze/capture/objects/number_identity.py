"""`left is right` of numbers, of which several objects can be equal.

n is 3        n == 3, for symbols: CPython has one object of each small integer
n is 1000     n == 1000 is asked: no, or only the program's own objects say it
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from braze.capture.frames.control_signals import BreakRequested
from braze.capture.objects.truth import truth
from braze.capture.state.guard_context import NUMBERS
from braze.shapes.symbolic import ProgramInt
from braze.tracing.symbolic.symbolic_float import SymbolicFloat

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_SYMBOLS: frozenset[type] = frozenset({ProgramInt, SymbolicFloat})
_COUNTED: frozenset[type] = _SYMBOLS | {int, float}
_SMALL_INTEGERS = (-5, 256)


def are_numbers(left: object, right: object) -> bool:
    """Whether both are integers or floats, symbols among them."""
    return type(left) in _COUNTED and type(right) in _COUNTED


def is_same_number(interpreter: Interpreter, left: object, right: object) -> bool:
    """Whether two numbers are one object. Raises BreakRequested where equal ones may be two."""
    kinds = {NUMBERS.get(type(number), type(number)) for number in (left, right)}
    if len(kinds) > 1 or not _holds(interpreter, operator.eq, left, right):
        return False
    if kinds == {int}:
        number = right if type(right) is int else left
        lowest, highest = _SMALL_INTEGERS
        if not _holds(interpreter, operator.lt, number, lowest) and not _holds(
            interpreter, operator.gt, number, highest
        ):
            return True
    if _SYMBOLS.isdisjoint((type(left), type(right))):
        return False  # constants of the graph, as they are in this call
    raise BreakRequested("unseen-callable", "whether two equal numbers are one object")


def _holds(interpreter: Interpreter, compare: Any, left: object, right: object) -> bool:
    return truth(interpreter, interpreter.native(compare, left, right))
