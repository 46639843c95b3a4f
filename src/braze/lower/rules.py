"""The table of lowering rules, keyed by the operator's name ("add.Tensor", "exp.default").

A rule is a function `rule(call, *args, **kwargs)` with the operator's own arguments, graph values
among them. It returns

- a body: a function from the coordinates of an element of the (only) result to its scalar,
- a `View`: the result is another value, seen through a map of coordinates,
- a `Folded` body: computed wherever it is read, never stored (constants, positions),
- `DONE`, after giving every result that is used through `call.result`, or
- None: no loops for these arguments, decided before `call` was told anything; the operator is
  then run by its ATen kernel.

Rules register next to their code; `braze.lower.lowering` imports the families.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, final

from braze.frozen import frozen
from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Scalar
from braze.ir.types import Size
from braze.lower.coordinates import CoordinateMap, Coordinates

Body: TypeAlias = Callable[[Coordinates], Scalar]


@final
@frozen(eq=False)
class View:
    """The element at `at` of the result is the element at `index(at)` of `base`.

    is_strided: the map adds multiples of the coordinates, so that strides can surely say it.
    """

    base: Value
    index: CoordinateMap
    is_strided: bool = True


@final
@frozen(eq=False)
class Folded:
    """A result that its readers compute for themselves."""

    body: Body


@final
@frozen(eq=False)
class Reinterpreted:
    """The memory of `base` with the result's own dtype, shape and strides: `as_strided`,
    `view(dtype)`, real views of complex tensors.

    scale: elements of the result's dtype in one element of the base's, as a fraction.
    offset: where it starts in the buffer, in elements; None: where `base` does.
    """

    base: Value
    scale: tuple[int, int] = (1, 1)
    offset: Size | None = None


@final
@frozen
class Done:
    """Every result was given through the call."""


DONE = Done()
Lowered: TypeAlias = Body | View | Folded | Reinterpreted | Done | None
Rule: TypeAlias = Callable[..., Lowered]
_R = TypeVar("_R", bound=Rule)


@final
@frozen
class RuleRow:
    """exact: results are bit for bit those of the ATen kernel; other rules are not used where
    options ask for eager numerics. any_dtype: moves elements without computing with them.
    takes_numbers: a Python number among the arguments may be one that the graph computes, a
    `Value`; with such a number other operators are left to ATen."""

    rule: Any
    exact: bool
    any_dtype: bool
    takes_numbers: bool


RULES: dict[str, RuleRow] = {}


def rule(
    *names: str, exact: bool = True, any_dtype: bool = False, takes_numbers: bool = False
) -> Callable[[_R], _R]:
    """Register a rule for the named operators; "exp" stands for "exp.default"."""

    def register(function: _R) -> _R:
        for name in names:
            add_rule(name, function, exact, any_dtype, takes_numbers)
        return function

    return register


def add_rule(
    name: str,
    function: Rule,
    exact: bool = True,
    any_dtype: bool = False,
    takes_numbers: bool = False,
) -> None:
    """Register one rule; raises ValueError where the operator has one already."""
    key = f"aten.{name}" if "." in name else f"aten.{name}.default"
    if key in RULES:
        raise ValueError(f"two lowering rules for {key}")
    RULES[key] = RuleRow(function, exact, any_dtype, takes_numbers)
