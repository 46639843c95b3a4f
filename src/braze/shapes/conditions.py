"""Questions about symbolic sizes, as C++ asks them: comparisons, and what memory looks like."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, final

from braze.shapes.data_symbols import Undecidable
from braze.shapes.expr import as_expr
from braze.shapes.facts import Facts, Kind, Relation
from braze.shapes.unknowns import UnseenError


def always(value: object) -> Callable[[], Any]:
    """A function that gives the value and runs no Python: C++ asks nodes thousands of times."""
    return itertools.repeat(value).__next__


NOTHING_KNOWN = always(None)


@final
class Condition:
    """A comparison that C++ has not asked the answer of. ask(None) decides it; ask(default) gives
    the default where the answer does not follow from what is known. facts: of whose sizes it is."""

    __slots__ = ("ask", "facts", "promise")

    is_bool = is_symbolic = has_hint = True.__bool__
    is_int = is_float = is_nested_int = is_constant = False.__bool__
    maybe_as_int = constant_bool = constant_int = nested_int = NOTHING_KNOWN

    def __init__(
        self,
        ask: Callable[[bool | None], bool],
        promise: Callable[[], bool] | None = None,
        facts: Facts | None = None,
    ) -> None:
        self.ask = ask
        self.facts = facts
        self.promise = promise

    def clone(self) -> Any:
        return self

    def wrap_bool(self, value: bool) -> Condition:
        return Condition(lambda default: value)

    def guard_bool(self, file: str, line: int) -> bool:
        return self.ask(None)

    guard_size_oblivious = guard_bool

    def expect_true(self, file: str, line: int) -> bool:
        """What C++ needs to hold, or it raises."""
        return self.ask(None) if self.promise is None else self.promise()

    def bool_(self) -> bool:
        return self.ask(None)

    # The default is for what no size at hand answers: eager's strides depend on the answer.

    def guard_or_false(self, file: str, line: int) -> bool:
        return self._ask_or(False)

    def guard_or_true(self, file: str, line: int) -> bool:
        """Mostly whether dimensions lie apart in memory: if so, to be joined they are copied."""
        is_free = self.facts is not None and self.facts.has_free_choice
        return self.ask(True) if is_free else self._ask_or(True)

    def _ask_or(self, default: bool) -> bool:
        try:
            return self.ask(None)
        except (Undecidable, UnseenError):
            return self.ask(default)

    def statically_known_true(self, file: str, line: int) -> bool:
        return self.ask(False)

    def sym_and(self, other: Any) -> Condition:
        return Condition(lambda default: self.ask(default) and other.ask(default))

    def sym_or(self, other: Any) -> Condition:
        return Condition(lambda default: self.ask(default) or other.ask(default))

    and_, or_ = sym_and, sym_or

    def sym_not(self) -> Condition:
        return Condition(lambda default: not self.ask(None if default is None else not default))


def is_dense_in_order(sizes: Any, strides: Any, order: Any) -> bool:
    """Whether memory has no gaps, the dimensions going from the fastest to the slowest."""
    expected = 1
    for dim in order:
        size, step = sizes[dim], strides[dim]
        if size == 1:
            continue
        if step != expected:
            return False
        expected = expected * size
    return True


def are_strides_in_order(sizes: Any, strides: Any, order: Any) -> bool:
    """As eager asks whether strides are those of a memory format. Of several questions one that is
    known to say no is enough: then the others are not asked."""
    least = 0
    for place, dim in enumerate(order):
        is_less = known_less(strides[dim], least)
        if is_less is None and _is_out_of_order(sizes, strides, order[place:]):
            return False
        if sizes[dim] == 0 or (strides[dim] < least if is_less is None else is_less):
            return False
        if dim == 0 and least == strides[1]:
            return False
        least = strides[dim] * at_least_one(sizes[dim])
    return True


def _is_out_of_order(sizes: Any, strides: Any, order: Any) -> bool:
    """Whether a stride is known to be less than what the dimension before takes."""
    for inner, outer in itertools.pairwise(order):
        is_empty = known_less(sizes[inner], 1)
        if is_empty is False and known_less(strides[outer], strides[inner] * sizes[inner]):
            return True
    return False


def known_equality(left: object, right: object) -> bool | None:
    """Whether two sizes or strides are equal; None where that is not known. Asks nothing."""
    if type(left) is type(right) is int:
        return bool(left == right)
    return _known(left, right, "==")


def known_less(left: object, right: object) -> bool | None:
    """Whether the left one is less; None where that is not known. Asks nothing."""
    if type(left) is type(right) is int:
        return bool(left < right)
    is_as_large = _known(left, right, ">=")
    return None if is_as_large is None else not is_as_large


def _known(left: Any, right: Any, kind: Kind) -> bool | None:
    """Whether `left kind right`."""
    facts: Facts = (right if type(left) is int else left).facts
    first, second = (as_expr(n if type(n) is int else n.now()) for n in (left, right))
    return facts.follows(Relation(first - second, kind))


def at_least_one(size: Any) -> Any:
    """max(size, 1), as strides count a size; of one that no size at hand answers for, the size
    itself: where it is zero, no stride is used."""
    if type(size) is not int and size.is_open():
        return size
    return max(size, 1)


def is_dense(sizes: Any, strides: Any) -> bool:
    """Whether memory has neither gaps nor overlaps, in some order of the dimensions."""
    expected = 1
    for step, size in sorted(zip(strides, sizes), key=lambda pair: size_at_hand(pair[0])):
        if size != 1:
            if step != expected:
                return False
            expected = expected * size
    return True


def size_at_hand(size: Any) -> int:
    """A size as the call at hand has it. Asks nothing."""
    return size if type(size) is int else size.hint
