"""Views of inputs that carry no gradient, though the input does: `x.detach()`; and those that have
a version of their own: `x.data[0]`.

A view that generated code makes while autograd is off still requires grad where its base does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.ir.entry import GraphCallable
from braze.ir.graph import Graph


def with_detached_views(run: GraphCallable, graph: Graph) -> GraphCallable:
    """The graph's callable, whose results are detached where the graph says so."""
    places = [number for number, output in enumerate(graph.outputs) if output.detached]
    own = [n for n, output in enumerate(graph.outputs) if output.uncounted]
    if not places and not own:
        return run

    def run_and_detach(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        results = list(run(inputs))
        for number in places:
            results[number] = results[number].detach()
        for number in own:
            results[number] = results[number].data
        return results

    return run_and_detach
