"""How the examples are called: in one graph, and left alone as the guide's `backend` sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import braze


class Counter:
    """A backend, as a guide writes one, that counts the graphs that it is given."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        self.graphs.append(gm)
        return gm.forward


def in_one_graph(f: Callable[..., Any], *args: Any) -> Any:
    """The function's result, compiled without a break; its graph is not empty."""
    report = braze.explain(f, *args)
    assert report.graph_count == 1 and report.break_count == 0, report
    return braze.compile(f, fullgraph=True)(*args)
