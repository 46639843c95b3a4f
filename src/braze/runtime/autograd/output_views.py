"""Views among a graph's results, as autograd takes them.

Of inputs that carry gradients: `x.detach()`, which carries none, and `x.data[0]`, which has a
version of its own. A view that generated code makes while autograd is off still requires grad where
its base does.

Of any others: those that eager makes with gradients enabled may be written to in place by what
carries gradients, but not what generated code makes while autograd is off.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.compat.torch.autograd_engine import as_piece, as_plain_view
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.graphs.graph import Graph


def with_views_of_eager(run: GraphCallable, graph: Graph, alone: bool) -> GraphCallable:
    """The graph's callable, whose results are views of the kinds that the graph says. alone:
    autograd does not see the graph."""
    run = _detaching(run, graph)
    return _marking(run, graph) if alone else run


# --- private ---------------------------------------------------------------------------------


def _detaching(run: GraphCallable, graph: Graph) -> GraphCallable:
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


def _marking(run: GraphCallable, graph: Graph) -> GraphCallable:
    views = [(n, o) for n, o in enumerate(graph.outputs) if not (o.detached or o.uncounted)]
    marks = [(n, as_plain_view) for n, output in views if output.is_plain]
    marks += [(n, as_piece) for n, output in views if output.is_piece]
    if not marks:
        return run

    def run_and_mark(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        results = run(inputs)
        if torch.is_grad_enabled():
            for number, mark in marks:
                mark(results[number])
        return results

    return run_and_mark
