"""A user backend's graph that fails half-way leaves its inputs as they were.

Other graphs write to their inputs when all else is done. A graph of torch-level calls writes where
the program does, and what a later call raises, the frame is run again for: from the start, natively.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from braze.compat.backward import VERSION
from braze.errors import PartlyRun
from braze.ir.graph import Graph

_Run: TypeAlias = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def undoing_writes(graph: Graph, run: _Run) -> _Run:
    """`run`, undone where it raises. Raises PartlyRun where that cannot be, because gradients flow
    through what was written."""
    written = {mutation.input for mutation in graph.mutations}
    places = [number for number, value in enumerate(graph.inputs) if value in written]
    if not places:
        return run

    def run_or_undo(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        kept = [_kept(inputs[place]) for place in places]
        try:
            return run(inputs)
        except Exception as fault:
            if not all(_restore(inputs[place], *facts) for place, facts in zip(places, kept)):
                raise PartlyRun(fault) from fault
            raise

    return run_or_undo


def _kept(tensor: torch.Tensor) -> tuple[int, torch.Tensor, bool]:
    return VERSION(tensor), tensor.detach().clone(), tensor.requires_grad


def _restore(tensor: torch.Tensor, version: int, data: torch.Tensor, had_gradient: bool) -> bool:
    """Whether a tensor could be made what it was."""
    if VERSION(tensor) == version:
        return True
    has_new_history = tensor.requires_grad and (not had_gradient or not tensor.is_leaf)
    if has_new_history and (had_gradient or tensor._is_view()):
        return False
    with torch.no_grad():
        tensor.copy_(data)
    if has_new_history:
        tensor.detach_()
    return True
