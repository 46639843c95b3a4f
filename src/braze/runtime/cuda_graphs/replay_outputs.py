"""What a replay hands out: tensors in fresh memory, others that lie in the recording's, and views
of inputs and of the first. A training step saves some hundreds for its backward: what is done for
each in Python is a good part of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch

from braze.frozen import frozen
from braze.ir.picking import items_at
from braze.runtime.cuda_graphs.capture_analysis import RecordingFacts

_DETACH: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.detach


@final
@frozen
class _View:
    """is_of_input: number is an input's, else that of a tensor in fresh memory."""

    is_of_input: bool
    number: int
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


@final
@frozen
class ReplayResults:
    """kept: what lies in the recording's memory, each replay's results being new tensors there.
    arranged: results in order, of those in fresh memory, these, and views, one behind the other."""

    kept: list[torch.Tensor]
    views: list[_View]
    arranged: Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]

    def of(self, fresh: Sequence[torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
        """A replay's. fresh: in the order that the plan was told."""
        made = [*fresh, *map(_DETACH, self.kept)]
        for view in self.views:
            base = inputs[view.number] if view.is_of_input else fresh[view.number]
            start = base.storage_offset() + view.offset
            made.append(base.as_strided(view.shape, view.stride, start))
        return [*self.arranged(made)]


def plan_results(
    recorded: Sequence[torch.Tensor],
    facts: RecordingFacts,
    fresh: Sequence[int],
    kept: Mapping[int, torch.Tensor],
    starts: Mapping[int, int],
) -> ReplayResults:
    """recorded: the results of the call that was recorded. fresh: numbers of those that have new
    memory each time, in the order in which it is made. kept: those that lie in the recording's.
    starts: of views, where what they are of begins in its memory."""
    place_of = {number: place for place, number in enumerate(fresh)}
    views: list[_View] = []
    behind = len(fresh)
    staying: list[int] = []
    viewed: list[int] = []
    for number, result in enumerate(recorded):
        if number in place_of:
            continue
        base = place_of.get(facts.same_results.get(number, -1))
        if base is None and number not in facts.input_results:
            staying.append(number)
            continue
        source = facts.input_results[number] if base is None else base
        offset = int(result.storage_offset()) - starts[number]
        views.append(_View(base is None, source, result.shape, result.stride(), offset))
        viewed.append(number)
    place_of |= {number: behind + n for n, number in enumerate((*staying, *viewed))}
    order = [place_of[number] for number in range(len(recorded))]
    return ReplayResults([kept[number] for number in staying], views, items_at(order))
