"""Which sizes and numbers of a frame's inputs are symbols: what the user asked for, and history.

    dynamic=None    those that differ from an earlier compile of the same place in the program
    dynamic=True    every size of a tensor argument and every int argument, from the first compile
    dynamic=False   none

Zero and one are no symbols, since programs and kernels treat them apart; but a count of the
program's that has begun to rise is one from the second compile on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import final

from braze.frozen import frozen


@final
@dataclass(slots=True)
class _Seen:
    """Sizes and strides of one tensor, or one number: as they were, and which of them changed."""

    numbers: tuple[float, ...]
    changed: frozenset[int] = frozenset()


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

    def changed(self, name: str, numbers: Sequence[float]) -> frozenset[int]:
        """Which of the numbers found at `name` differ from an earlier compile's."""
        numbers = tuple(numbers)
        now = self._now.get(name)
        if now is None or now.numbers != numbers:
            now = self._now[name] = _Seen(numbers)
            before = self._before.get(name)
            if before is not None and len(before.numbers) == len(numbers):
                pairs = enumerate(zip(before.numbers, numbers))
                found = [place for place, (old, new) in pairs if old != new]
                # Most change nowhere, and share the empty set.
                now.changed = before.changed.union(found) if found else before.changed
        return now.changed

    def rises(self, name: str, number: int) -> bool:
        """Whether the number found at `name` was one less at the compile before."""
        before = self._before.get(name)
        return before is not None and before.numbers == (number - 1,)


@final
@frozen
class SizePolicy:
    """dynamic: as `braze.compile` takes it; history: of the frame that is compiled; numbers:
    whether ints and floats may be symbols, too."""

    dynamic: bool | None
    history: SizeHistory
    numbers: bool = True

    def sizes(
        self,
        name: str,
        numbers: Sequence[int],
        *,
        asked: Collection[int],
        static: Collection[int],
        is_argument: bool,
    ) -> frozenset[int]:
        """The places of `numbers` (sizes, then strides) that are symbols. asked, static:
        dimensions that the user marked so."""
        changed = self.history.changed(name, numbers)
        rank = len(numbers) // 2
        if self.dynamic is True and is_argument:
            changed |= frozenset(range(rank))
        elif self.dynamic is False:
            changed = frozenset()
        changed |= frozenset(asked)
        return frozenset(
            place
            for place in changed
            if place not in static and (numbers[place] > 1 or place in asked)
        )

    def is_symbolic(self, name: str, number: int, *, is_argument: bool) -> bool:
        """Whether an int found at `name` is a symbol."""
        changed = self.history.changed(name, (number,))
        if self.dynamic is False or not self.numbers or number == -1:
            return False
        if number in (0, 1):
            return not is_argument and self.history.rises(name, number)
        return bool(changed) or (self.dynamic is True and is_argument)

    def is_lifted(self, name: str, number: float, *, expected: bool) -> bool:
        """Whether a float found at `name` is passed to the graph. expected: it will change."""
        changed = self.history.changed(name, (number,))
        return self.dynamic is not False and self.numbers and (expected or bool(changed))
