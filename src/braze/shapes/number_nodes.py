"""The floats that PyTorch's C++ makes of symbolic sizes, as `cross_entropy` does of the number of
classes under label smoothing: the size is one value from there on."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Protocol, TypeVar, final

from braze.shapes.conditions import Condition

_Number = TypeVar("_Number", int, float)


class Arithmetic(Protocol):
    """An operation on numbers: of ints an int, of floats a float."""

    def __call__(self, left: _Number, right: _Number, /) -> _Number:
        """The result."""


@final
class FloatNode:
    """A number that is known, as C++ asks a symbolic float for it."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value

    def wrap_float(self, value: float) -> FloatNode:
        """The node of another number."""
        return FloatNode(value)

    def guard_float(self, file: str, line: int) -> float:
        """The number: nothing is left to guard."""
        return self.value

    def float_(self) -> float:
        """The same."""
        return self.value

    maybe_as_float = float_

    def clone(self) -> FloatNode:
        """Itself: it never changes."""
        return self

    sym_float = clone

    def is_float(self) -> bool:
        """What kind of number it is."""
        return True

    has_hint = is_symbolic = is_float

    def is_int(self) -> bool:
        """What kind of number it is not."""
        return False

    is_bool = is_nested_int = is_constant = is_int

    def maybe_as_int(self) -> None:
        """It is no integer."""

    constant_int = constant_bool = nested_int = maybe_as_int

    def str(self) -> str:
        """Its text."""
        return repr(self.value)

    _graph_repr = str

    def neg(self) -> FloatNode:
        """The number with the other sign."""
        return FloatNode(-self.value)

    def sqrt(self) -> FloatNode:
        """The square root."""
        return FloatNode(math.sqrt(self.value))


def _arithmetic(calculate: Callable[[float, float], float]) -> Callable[..., object]:
    def operation(self: FloatNode, other: FloatNode) -> FloatNode:
        return FloatNode(calculate(self.value, other.value))

    return operation


def _comparison(compare: Callable[[float, float], bool]) -> Callable[..., object]:
    def question(self: FloatNode, other: FloatNode) -> Condition:
        answer = compare(self.value, other.value)
        return Condition(lambda default: answer)

    return question


for _name in "eq ne lt le gt ge".split():
    setattr(FloatNode, _name, _comparison(getattr(operator, _name)))
for _name in "add sub mul truediv pow mod".split():
    setattr(FloatNode, _name, _arithmetic(getattr(operator, _name)))
for _name in "truediv pow".split():
    setattr(FloatNode, f"float_{_name}", getattr(FloatNode, _name))
for _name, _extremum in (("sym_min", min), ("sym_max", max)):
    setattr(FloatNode, _name, _arithmetic(_extremum))
