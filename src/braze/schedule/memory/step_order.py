"""Indexes the steps of a schedule by the buffers that they read and write.

    place 0: k0 writes a          `last_conflict(2)` is 0: k2 cannot run before k0, which writes
    place 1: k1 reads c           what k2 reads; it can run before k1
    place 2: k2 reads a, writes b

A step may be replaced, or taken away, which leaves a gap: the places of all others stay the same,
so that what is known of them still holds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import final

from braze.ir.kernels.loops import Buffer
from braze.ir.kernels.schedule import Step
from braze.schedule.memory.allocate import memory_of, written
from braze.schedule.memory.inplace_inputs import Rewritten


@final
class StepPlaces:
    """Steps by their places, None where one was taken away."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps: list[Step | None] = list(steps)
        # The places, in order, of the steps that touch a buffer, and of those that write it.
        self._touching: dict[Buffer, list[int]] = {}
        self._writing: dict[Buffer, list[int]] = {}
        for place in range(len(self.steps)):
            self._enter(place)

    def rewritten(self, before: Rewritten) -> Rewritten:
        """The steps that are there, in order, in the place of those that all places are of."""
        gone = [place for place, step in enumerate(self.steps) if step is None]
        settled = before.settled - sum(place < before.settled for place in gone)
        steps = tuple([step for step in self.steps if step is not None])
        return replace(before, steps=steps, settled=settled)

    def put(self, place: int, step: Step | None) -> None:
        """Replace the step of a place, or take it away."""
        for table, buffers in self._tables(place):
            for buffer in buffers:
                table[buffer].remove(place)
        self.steps[place] = step
        self._enter(place)

    def touching(self, buffers: Iterable[Buffer]) -> list[int]:
        """The places of the steps that read or write any of the buffers, in order."""
        return sorted({place for b in buffers for place in self._touching.get(b, ())})

    def last_conflict(self, place: int) -> int:
        """The last earlier place whose step must run before the step of this one; -1: none."""
        step = self.steps[place]
        assert step is not None
        found = [self._last(self._writing, b, place) for b in memory_of(step)]
        found += [self._last(self._touching, b, place) for b in written(step)]
        return max(found, default=-1)

    # --- private -------------------------------------------------------------------------------

    @staticmethod
    def _last(table: dict[Buffer, list[int]], buffer: Buffer, before: int) -> int:
        places = table.get(buffer, [])
        at = bisect_left(places, before)
        return places[at - 1] if at else -1

    def _tables(self, place: int) -> list[tuple[dict[Buffer, list[int]], set[Buffer]]]:
        step = self.steps[place]
        if step is None:
            return []
        return [(self._touching, {*memory_of(step)}), (self._writing, {*written(step)})]

    def _enter(self, place: int) -> None:
        for table, buffers in self._tables(place):
            for buffer in buffers:
                insort(table.setdefault(buffer, []), place)
