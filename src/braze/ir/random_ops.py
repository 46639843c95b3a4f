"""Which operators draw random numbers."""

from __future__ import annotations

import functools

import torch

from braze.ir.graph import Graph


@functools.cache
def is_random(op: torch._ops.OpOverload) -> bool:
    """Whether a call advances a generator, so that it is neither merged, moved nor dropped."""
    return torch.Tag.nondeterministic_seeded in op.tags


def uses_random(graph: Graph) -> bool:
    """Whether running the graph advances a generator."""
    return any(is_random(node.op) for node in graph.nodes)
