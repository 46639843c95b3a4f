"""Graphs of frames that save tensors in eager, called under hooks on saved tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.compat.torch.saved_tensor_hooks import (
    is_in_checkpoint,
    raised_by_hooks,
    shows_saved_tensors,
)
from braze.errors import RecomputedOtherwise
from braze.ir.captured.compile_request import GraphCallable, HooksInForce, PartlyRun, SavingGraph
from braze.ir.captured.frame import Break, CapturedFrame, FillInstance
from braze.runtime.autograd.checkpoint_calls import in_checkpoint
from braze.runtime.autograd.compiled_autograd_function import FOREIGN_HOOKS, TrainingGraph


def with_hooks_checked(
    graph: GraphCallable, captured: CapturedFrame
) -> tuple[GraphCallable, SavingGraph | None]:
    """The graph of a frame, which raises HooksInForce where it cannot serve the hooks in force, and
    what identifies it; None where neither it nor the rest of its frame saves anything.

    A recomputation by `torch.utils.checkpoint` ends where all is saved. What the frame writes to
    Python state before that is written twice, and what it writes behind it, once; a graph runs as
    a whole before anything is written, so a frame that writes is left to eager there.
    """
    writes = any(type(effect) is not FillInstance for effect in captured.effects)
    is_trained = type(graph) is TrainingGraph
    saving = graph.saving if type(graph) is TrainingGraph else SavingGraph()
    saves = captured.saves or captured.runs_backward
    if not saves and type(captured.exit) is Break:
        return _noted(graph, saving), saving  # which graph runs next depends on it
    if not saves:
        return graph, saving if is_trained else None
    if is_trained and not writes:
        return graph, saving  # it looks for hooks itself

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if shows_saved_tensors():
            raise HooksInForce(FOREIGN_HOOKS)
        if writes and is_in_checkpoint():
            raise HooksInForce("torch.utils.checkpoint calls a function that writes Python state")
        try:
            if is_trained:
                return graph(inputs)
            with in_checkpoint(saving):
                return graph(inputs)
        except RecomputedOtherwise:
            raise
        except Exception as problem:
            if raised_by_hooks(problem):
                raise PartlyRun(problem) from None
            raise

    return run, saving


def _noted(graph: GraphCallable, saving: SavingGraph) -> GraphCallable:
    """A graph whose calls a checkpoint notes, though they save nothing."""

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        with in_checkpoint(saving):
            return graph(inputs)

    return run
