"""Old gradients go before a graph runs that does not need them (`capture/dropped_gradients.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.ir.entry import GraphCallable, PartlyRun


def without_gradients_of(run: GraphCallable, leaves: Sequence[int]) -> GraphCallable:
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
