"""Which operators draw random numbers, and where."""

from __future__ import annotations

import functools

import torch

from braze.ir.graphs.graph import Graph, operands
from braze.ir.types import TensorType


@functools.cache
def is_random(op: torch._ops.OpOverload) -> bool:
    """Whether a call advances a generator, so that it is neither merged, moved nor dropped."""
    return torch.Tag.nondeterministic_seeded in op.tags


def drawing_devices(graph: Graph) -> tuple[torch.device, ...]:
    """The devices whose generators running the graph advances."""
    drawing = [node for node in graph.nodes if is_random(node.op)]
    values = [value for node in drawing for value in (*node.outputs, *operands(node))]
    kinds = [value.type for value in values if value is not None]
    return tuple(dict.fromkeys([kind.device for kind in kinds if isinstance(kind, TensorType)]))
