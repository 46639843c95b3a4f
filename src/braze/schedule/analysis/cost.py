"""The cost model: operations per element, bytes, and which operations are expensive."""

from __future__ import annotations

import math
from collections.abc import Iterable

from braze.ir.kernels.loops import Apply, Definition, Load, Reduce, Scalar
from braze.ir.kernels.scalars import walk
from braze.ir.kernels.schedule import HEAVY_OPERATORS
from braze.ir.types import Size
from braze.shapes.expr import Symbol, constant_value

_MIDDLING = frozenset("sqrt rsqrt truediv floordiv mod truncdiv".split())
_SYMBOLIC_SIZE = 128  # what a size that is not known is taken to be


def operations(scalar: Scalar) -> int:
    """About how many cheap operations an element costs; 20 for a transcendental function."""
    total = 0
    for node in walk(scalar):
        if isinstance(node, Apply):
            total += 20 if node.op in HEAVY_OPERATORS else 4 if node.op in _MIDDLING else 1
    return total


def is_heavy(scalar: Scalar) -> bool:
    """Whether computing it twice costs more than writing and reading it."""
    return any(
        isinstance(n, Reduce) or (isinstance(n, Apply) and n.op in HEAVY_OPERATORS)
        for n in walk(scalar)
    )


def distinct_loads(scalar: Scalar) -> set[Load]:
    """The different elements that the expression reads."""
    return {node for node in walk(scalar) if isinstance(node, Load)}


def estimated(sizes: Iterable[Size]) -> int:
    """The product of sizes, unknown ones guessed."""
    known = [constant_value(size) for size in sizes]
    return math.prod(_SYMBOLIC_SIZE if size is None else size for size in known)


def points(definition: Definition) -> int:
    """How many times the definition's body is evaluated (guessed for symbolic sizes)."""
    return estimated(size for _, size in loops(definition))


def loops(definition: Definition) -> tuple[tuple[Symbol, Size], ...]:
    """Every loop of a normalised definition: its axes, then those that it reduces over."""
    if isinstance(definition.body, Reduce):
        return (*definition.axes, *definition.body.axes)
    return definition.axes
