"""What is done to leaves before a graph runs: old gradients go that it does not need
(`capture/training/zero_grad.py`), and inputs begin to need gradients, or cease to
(`capture/training/leaf_creation.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.ir.captured.compile_request import GraphCallable, PartlyRun
from braze.ir.captured.frame import CapturedFrame


def with_leaves_ready(run: GraphCallable, captured: CapturedFrame) -> GraphCallable:
    """The graph of a captured frame, with what comes before it."""
    return _with_leaves_switched(_without_gradients_of(run, captured.dropped), captured.switched)


def _with_leaves_switched(run: GraphCallable, leaves: Sequence[tuple[int, bool]]) -> GraphCallable:
    """The graph; before it runs, these inputs begin to need gradients, or cease to. Where it
    faults, they are as before, until the frame that runs eagerly comes to it."""
    if not leaves:
        return run

    def switch_and_run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        switched = [(inputs[index], wanted) for index, wanted in leaves]
        for leaf, _ in switched:
            if leaf._backward_hooks or leaf._post_accumulate_grad_hooks:
                raise RuntimeError("a leaf whose need of gradients changes has old hooks on them")
        try:
            for leaf, wanted in switched:
                leaf.requires_grad_(wanted)
            return run(inputs)
        except PartlyRun:
            raise
        except BaseException:
            for leaf, wanted in switched:
                leaf.requires_grad_(not wanted)
            raise

    return switch_and_run


def _without_gradients_of(run: GraphCallable, leaves: Sequence[int]) -> GraphCallable:
    """The graph; before it runs, `.grad` of these inputs becomes None. Where it faults the frame
    runs eagerly and drops them itself, so they have some again, of zeros."""
    if not leaves:
        return run

    def drop_and_run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        dropped = []
        for index in leaves:
            leaf = inputs[index]
            if leaf.grad is not None:
                leaf.grad = None
                dropped.append(leaf)
        try:
            return run(inputs)
        except PartlyRun:
            raise
        except Exception:
            for leaf in dropped:
                leaf.grad = torch.zeros_like(leaf, requires_grad=False)
            raise

    return drop_and_run
