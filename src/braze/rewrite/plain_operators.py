"""Replaces Braze's internal operators by ATen operators, when their extra facts have been used.

    %2 = braze.overwritten(%0, %1)        %2 = clone(%1)      gradients are traced
    %3 = braze.with_data(%0, %2)     ->   %3 = clone(%2)
    %4 = braze.python_exp(%3)             %4 = exp(%3)        no library kernel runs it

What they kept alive may be dead then; the copies may go like others.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from braze.compat.torch.aten import aten
from braze.compat.torch.registered_ops import PYTHON_FUNCTIONS, overwritten, with_data
from braze.ir.graphs.graph import Graph, Node

_COPY = aten.clone.default

# Operator -> (ATen's, which of the arguments it takes).
_PLAIN: dict[torch._ops.OpOverload, tuple[torch._ops.OpOverload, slice]] = {
    overwritten: (_COPY, slice(1, None)),
    with_data: (_COPY, slice(1, None)),
    **{own: (plain, slice(None)) for plain, own in PYTHON_FUNCTIONS.items()},
}


def plain_operators(graph: Graph) -> Graph:
    """The graph in ATen's operators alone, where they are the same."""
    if not any(node.op in _PLAIN for node in graph.nodes):
        return graph
    return replace(graph, nodes=tuple(map(_plain, graph.nodes)))


def _plain(node: Node) -> Node:
    found = _PLAIN.get(node.op)
    return node if found is None else replace(node, op=found[0], args=node.args[found[1]])
