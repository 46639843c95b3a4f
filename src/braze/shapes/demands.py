"""What shape rules demand of sizes: where anything else is an error, or another result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from braze.shapes.facts import Relation
from braze.shapes.symbolic import SymbolicSize, relation_of


def symbolic_among(sizes: Iterable[object]) -> Iterator[SymbolicSize]:
    """The symbolic ones of some sizes."""
    return (size for size in sizes if isinstance(size, SymbolicSize))


def is_computed(*sizes: object) -> bool:
    """Whether one of the sizes is made of numbers that the program computes, or of sizes that the
    user marked as unbacked."""
    return any(isinstance(size, SymbolicSize) and size.is_open() for size in sizes)


def must_equal(left: object, right: object) -> bool:
    """`left == right` where anything else is an error: of numbers that the program computes, it is
    checked when it runs."""
    if left is right:
        return True
    for size in (left, right):
        if isinstance(size, SymbolicSize):
            facts, relation = relation_of("eq", left, right)
            return not relation.expr.terms or facts.require(relation)
    return bool(left == right)


def is_exactly(size: object, number: int) -> bool:
    """`size == number` where the two answers mean different results, not only another way to the
    same: of a number that the program computes, the answer is checked when it runs."""
    if isinstance(size, SymbolicSize):
        size.facts.require_other(size.now(), number)
    return bool(size == number)


def must_be_positive(size: Any) -> bool:
    """`size > 0` where anything else is an error, or rare: of a size that no size at hand answers
    for, it is checked."""
    if isinstance(size, SymbolicSize) and size.is_open():
        return size.facts.require(Relation(size.now() - 1, ">="))
    return bool(size > 0)
