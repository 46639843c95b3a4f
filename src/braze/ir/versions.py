"""Inputs that a graph writes to, and whose version stays what it is.

What the program wrote through `x.data`, autograd does not count for `x`, and of running statistics
the operator does not say that it writes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.compat.backward import VERSION, set_versions
from braze.ir.entry import GraphCallable
from braze.ir.graph import Graph


def keeping_versions(run: GraphCallable, graph: Graph) -> GraphCallable:
    """A callable of the graph that does not know which of its writes count: their versions are put
    back."""
    uncounted = {mutation.input for mutation in graph.mutations if not mutation.counted}
    places = [number for number, value in enumerate(graph.inputs) if value in uncounted]
    if not places:
        return run

    def run_and_put_back(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        written = tuple([inputs[place] for place in places])
        versions = tuple(map(VERSION, written))
        try:
            return run(inputs)
        finally:
            set_versions(written, versions)

    return run_and_put_back
