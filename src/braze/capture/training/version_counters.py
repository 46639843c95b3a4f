"""How often memory counts as written to, where other writes are interpreted than eager makes.

A graph counts what PyTorch's dispatcher counted of the fake tensors. Where a step in Python stands
for
a kernel, or both sides of a branch are made, that is more than eager counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import torch

from braze.compat.torch.autograd_engine import VERSION, set_versions
from braze.tracing.fake_tensor import TracedTensor


@final
class WriteCounts:
    """The counts of those fake tensors among some values that have any: in inference mode none
    has."""

    def __init__(self, values: Iterable[object]) -> None:
        found = [x for x in values if type(x) is TracedTensor and not x.is_inference()]
        self._fakes = tuple(found)
        self._counts = tuple(map(VERSION, found))

    def put_back(self) -> tuple[int, ...]:
        """Let nothing have been written since these were made; gives what was counted instead."""
        found = tuple(map(VERSION, self._fakes))
        set_versions(self._fakes, self._counts)
        return found

    def raise_to(self, counts: tuple[int, ...]) -> None:
        """Let each fake tensor count these writes, if it counts fewer."""
        set_versions(self._fakes, tuple(map(max, counts, map(VERSION, self._fakes))))


def take_back_counts(
    is_left_out: torch.Tensor, written: Sequence[torch.Tensor], by: Sequence[int]
) -> None:
    """Behind a graph: where a step was left out, let each tensor count so many writes less."""
    if is_left_out.item():
        versions = tuple([VERSION(x) - count for x, count in zip(written, by)])
        set_versions(tuple(written), versions)
