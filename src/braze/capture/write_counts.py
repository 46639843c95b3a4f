"""How often memory counts as written to, where other writes are interpreted than eager makes.

A graph counts what PyTorch's dispatcher counted of the stand-ins. Where a step in Python stands for
a kernel, or both sides of a branch are made, that is more than eager counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import torch

from braze.compat.backward import VERSION, set_versions
from braze.standins.standin import Standin


@final
class WriteCounts:
    """The counts of those stand-ins among some values that have any: in inference mode none has."""

    def __init__(self, values: Iterable[Any]) -> None:
        found = [x for x in values if type(x) is Standin and not x.is_inference()]
        self._standins = tuple(found)
        self._counts = tuple(map(VERSION, found))

    def put_back(self) -> tuple[int, ...]:
        """Let nothing have been written since these were made; gives what was counted instead."""
        found = tuple(map(VERSION, self._standins))
        set_versions(self._standins, self._counts)
        return found

    def raise_to(self, counts: tuple[int, ...]) -> None:
        """Let each stand-in count these writes, if it counts fewer."""
        set_versions(self._standins, tuple(map(max, counts, map(VERSION, self._standins))))


def take_back_counts(
    is_left_out: torch.Tensor, written: Sequence[torch.Tensor], by: Sequence[int]
) -> None:
    """Behind a graph: where a step was left out, let each tensor count so many writes less."""
    if is_left_out.item():
        versions = tuple([VERSION(x) - count for x, count in zip(written, by)])
        set_versions(tuple(written), versions)
