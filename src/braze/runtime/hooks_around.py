"""Graphs of frames that save tensors in eager, called under hooks on saved tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.compat.saved_hooks import is_in_checkpoint, raised_by_hooks, shows_saved_tensors
from braze.ir.entry import GraphCallable, HooksInForce, PartlyRun
from braze.ir.frame import CapturedFrame, FillInstance
from braze.runtime.training import FOREIGN_HOOKS, TrainingGraph


def with_hooks_checked(graph: GraphCallable, captured: CapturedFrame) -> GraphCallable:
    """The graph of a frame, which raises HooksInForce where it cannot serve the hooks in force.

    A recomputation by `torch.utils.checkpoint` ends where all is saved. What the frame writes to
    Python state before that is written twice, and what it writes behind it, once; a graph runs as
    a whole before anything is written, so a frame that writes is left to eager there.
    """
    writes = any(type(effect) is not FillInstance for effect in captured.effects)
    if not captured.saves or (type(graph) is TrainingGraph and not writes):
        return graph  # the second looks for hooks itself

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if shows_saved_tensors():
            raise HooksInForce(FOREIGN_HOOKS)
        if writes and is_in_checkpoint():
            raise HooksInForce("torch.utils.checkpoint calls a function that writes Python state")
        try:
            return graph(inputs)
        except Exception as problem:
            if raised_by_hooks(problem):
                raise PartlyRun(problem) from None
            raise

    return run
