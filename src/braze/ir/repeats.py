"""Finds what repeats itself in a list of operations: the layers of a model that was unrolled.

    a b | c d e | c d e | c d e | f        ->  Repeats(start=2, length=3, matched=6)

An operation has a key (all of it but its operands) and operands. Two operations `length` apart
match if their keys are equal and each pair of operands is

    the same                     made before the repeats begin: all periods read it
    made `length` apart          by matching operations, at the same place of their results
    neighbours of a chain        given from outside, one a period: the weights of each layer

What is matched needs no other comparison: the operations from `start` on compute, period by
period, the same function of what they carry and of what their chains give them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar, final

from braze.frozen import frozen

_CANDIDATES = 8  # lengths of a period that are tried, most frequent first

# What operations read and make: values of a graph, or buffers of a schedule.
_Item = TypeVar("_Item", bound=Hashable)
# Whether two operands from outside may be neighbours of a chain.
Follows: TypeAlias = Callable[[_Item, _Item], bool]


@final
@frozen
class Operation(Generic[_Item]):
    """key: what it does. operands: read or written, in order. results: made by it, in order; None
    for one that it leaves undefined."""

    key: Hashable
    operands: tuple[_Item, ...]
    results: tuple[_Item | None, ...]


@final
@frozen
class Repeats(Generic[_Item]):
    """Operations from `start` on match those `length` later, `matched` of them.

    next: of what comes from outside, one a period, its successor.
    """

    start: int
    length: int
    matched: int
    next: Mapping[_Item, _Item]

    @property
    def periods(self) -> int:
        """How many whole periods there are."""
        return self.matched // self.length + 1

    @property
    def end(self) -> int:
        """Where the last matched operation's counterpart ends."""
        return self.start + self.matched + self.length


def find_repeats(
    operations: Sequence[Operation[_Item]], least: int, follows: Follows[_Item]
) -> Repeats[_Item] | None:
    """The repeats of at least so many periods that cover the most operations."""
    made = makers(operations)
    best: Repeats[_Item] | None = None
    for length in _lengths(operations, least):
        for found in _repeats_of(operations, made, length, follows):
            if found.periods >= least and (best is None or found.matched > best.matched):
                best = found
        if best is not None and best.matched * 4 > len(operations) * 3:
            break
    return best


def makers(operations: Sequence[Operation[_Item]]) -> dict[_Item, tuple[int, int]]:
    """Of each result, the operation that makes it first, and its place there."""
    found: dict[_Item, tuple[int, int]] = {}
    for number, operation in enumerate(operations):
        for place, result in enumerate(operation.results):
            if result is not None:
                found.setdefault(result, (number, place))
    return found


def chains_of(following: Mapping[_Item, _Item]) -> list[list[_Item]]:
    """The chains that successors make, each from its first member."""
    behind = set(following.values())
    chains = []
    for first in following:
        if first not in behind:
            chain = [first]
            while chain[-1] in following:
                chain.append(following[chain[-1]])
            chains.append(chain)
    return chains


# --- private ---------------------------------------------------------------------------------


def _lengths(operations: Sequence[Operation[_Item]], least: int) -> list[int]:
    """Distances between equal keys: one period, where a key comes once in it."""
    last: dict[Hashable, int] = {}
    gaps: dict[Hashable, list[int]] = {}
    for number, operation in enumerate(operations):
        key = operation.key
        if key in last:
            gaps.setdefault(key, []).append(number - last[key])
        last[key] = number
    votes: Counter[int] = Counter()
    for distances in gaps.values():
        if len(distances) < least - 1:
            continue
        seen = Counter(distances)
        for distance, count in seen.most_common(2):
            if count >= least - 1:
                votes[distance] += count * distance  # operations that it would cover
        # A key that comes several times in a period: the distances from each to its next equal.
        for step in range(2, 7):
            sums = Counter(map(sum, _windows(distances, step)))
            distance, count = sums.most_common(1)[0] if sums else (0, 0)
            if count >= (least - 1) * step:
                votes[distance] += distance * count // step
    return [length for length, _ in votes.most_common(_CANDIDATES)]


def _windows(numbers: list[int], size: int) -> Iterator[list[int]]:
    return (numbers[at : at + size] for at in range(len(numbers) - size + 1))


def _repeats_of(
    operations: Sequence[Operation[_Item]],
    made: Mapping[_Item, tuple[int, int]],
    length: int,
    follows: Follows[_Item],
) -> Iterator[Repeats[_Item]]:
    """Each run of operations that match those `length` later."""
    start, pairs = 0, _Pairs(made, length, follows)
    for number in range(len(operations) - length):
        one, other = operations[number], operations[number + length]
        if one.key == other.key:
            least = pairs.match(one, other)
            if least is not None and least <= number:
                if least > start:  # what all periods read is made before them
                    start = least
                continue
        if number - start >= length:
            yield Repeats(start, length, number - start, dict(pairs.following))
        start = number + 1
        pairs = _Pairs(made, length, follows)
    matched = len(operations) - length - start
    if matched >= length:
        yield Repeats(start, length, matched, dict(pairs.following))


class _Pairs(Generic[_Item]):
    """Which operand stands for which, one period later."""

    def __init__(
        self, made: Mapping[_Item, tuple[int, int]], length: int, follows: Follows[_Item]
    ) -> None:
        self.made, self.length, self.follows = made, length, follows
        self.following: dict[_Item, _Item] = {}
        self._behind: dict[_Item, _Item] = {}

    def match(self, one: Operation[_Item], other: Operation[_Item]) -> int | None:
        """Where repeats may begin that have both operations; None where they do not match."""
        least, chained = 0, []
        for left, right in zip(one.operands, other.operands, strict=True):
            place, later = self.made.get(left), self.made.get(right)
            if place is not None and later == (place[0] + self.length, place[1]):
                continue
            if left is right:
                if left in self.following or left in self._behind:
                    return None
                least = max(least, 0 if place is None else place[0] + 1)
                continue
            if place is not None or later is not None or not self.follows(left, right):
                return None
            chained.append((left, right))
        for left, right in chained:
            if self.following.setdefault(left, right) is not right:
                return None
            if self._behind.setdefault(right, left) is not left:
                return None
        return least
