"""Operators that only say where gradients go become copies: gradients are traced by now.

    %2 = braze.overwritten(%0, %1)        %2 = clone(%1)
    %3 = braze.with_data(%0, %2)     ->   %3 = clone(%2)

What they kept alive may be dead then; the copies may go like others.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from braze.compat.operators import overwritten, with_data
from braze.ir.graph import Graph, Node


def forget_histories(graph: Graph) -> Graph:
    """The graph with copies of the data alone."""
    if not any(node.op in (overwritten, with_data) for node in graph.nodes):
        return graph
    return replace(graph, nodes=tuple(map(_as_copy, graph.nodes)))


def _as_copy(node: Node) -> Node:
    if node.op not in (overwritten, with_data):
        return node
    return replace(node, op=torch.ops.aten.clone.default, args=node.args[1:])
