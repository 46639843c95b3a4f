"""Which sizes and numbers of a frame's inputs are symbols: what the user asked for, and history.

    dynamic=None    those that differ from an earlier compile of the same place in the program
    dynamic=True    every size of a tensor argument and every int argument, from the first compile
    dynamic=False   none

Zero and one are never symbols: programs and kernels treat them apart.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final


class DimensionMark(enum.Enum):
    """What a user said about a dimension of a tensor."""

    DYNAMIC = "dynamic"  # an error where the program needs its number
    MAYBE = "maybe"  # symbolic from the first compile
    STATIC = "static"
    UNBACKED = "unbacked"  # as DYNAMIC, and 0 and 1 are not told apart


@final
@dataclass(frozen=True, slots=True)
class Marked:
    """One marked dimension; least and most: the range that the user gave."""

    mark: DimensionMark
    least: int | None = None
    most: int | None = None


@final
@dataclass(slots=True)
class _Seen:
    """Sizes and strides of one tensor, or one number: as they were, and which of them changed."""

    numbers: tuple[int, ...]
    changed: set[int] = field(default_factory=set)


@final
class SizeHistory:
    """What earlier compiles of one place saw. `begin` opens a compile; questions may be asked
    repeatedly until the next."""

    def __init__(self) -> None:
        self._before: dict[str, _Seen] = {}
        self._now: dict[str, _Seen] = {}

    def begin(self) -> None:
        """A new compile: what the last one saw is history."""
        self._before |= self._now
        self._now = {}

    def changed(self, name: str, numbers: Sequence[int]) -> frozenset[int]:
        """Which of the numbers found at `name` differ from an earlier compile's."""
        numbers = tuple(numbers)
        now = self._now.get(name)
        if now is None or now.numbers != numbers:
            now = self._now[name] = _Seen(numbers)
            before = self._before.get(name)
            if before is not None and len(before.numbers) == len(numbers):
                now.changed |= before.changed
                now.changed |= {
                    place
                    for place, (old, new) in enumerate(zip(before.numbers, numbers))
                    if old != new
                }
        return frozenset(now.changed)


@final
@dataclass(frozen=True, slots=True)
class SizePolicy:
    """dynamic: as `braze.compile` takes it; history: of the frame that is compiled."""

    dynamic: bool | None
    history: SizeHistory

    def sizes(
        self,
        name: str,
        numbers: Sequence[int],
        marks: dict[int, Marked],
        *,
        is_argument: bool,
    ) -> frozenset[int]:
        """The places of `numbers` (sizes, then strides) that are symbols."""
        changed = self.history.changed(name, numbers)
        rank = len(numbers) // 2
        if self.dynamic is True and is_argument:
            changed |= frozenset(range(rank))
        elif self.dynamic is False:
            changed = frozenset()
        static = {dim for dim, marked in marks.items() if marked.mark is DimensionMark.STATIC}
        changed |= frozenset(marks)
        return frozenset(
            place
            for place in changed
            if place not in static and (numbers[place] > 1 or place in marks)
        )

    def is_symbolic(self, name: str, number: int, *, is_argument: bool) -> bool:
        """Whether an int found at `name` is a symbol."""
        changed = self.history.changed(name, (number,))
        if self.dynamic is False or number in (0, 1, -1):
            return False
        return bool(changed) or (self.dynamic is True and is_argument)


MARK_ATTRIBUTE = "_braze_dimensions"


def marks_of(tensor: Any) -> dict[int, Marked]:
    """The marked dimensions of a tensor."""
    found: dict[int, Marked] = getattr(tensor, MARK_ATTRIBUTE, None) or {}
    return found
