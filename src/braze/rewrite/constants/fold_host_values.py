"""Evaluates what a graph for a device computes on the CPU from nothing, once.

    %1: i64[64]cpu = arange(64)
    %2: b8[64]cpu = ge(%1, 56)                       constant %3: b8[64]cuda:0
    %3: b8[64]cuda:0 = _to_copy(%2, cuda:0)     ->   %4 = where(%3, %x, 0.0)
    %4 = where(%3, %x, 0.0)

Positions and masks that a program makes on the CPU, and then moves: each operator would be a call
of ATen, each move would wait for the device's stream, and a recording would be cut there. Their
bits are eager's, since ATen computes them. Left alone: what is large, what draws random numbers,
has effects or symbolic sizes, and what the caller gets, which is a new tensor in each call.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from braze.ir.graphs.graph import Graph, Node, Value, devices_of, operands
from braze.ir.types import TensorType
from braze.rewrite.constants.fold_constants import bytes_of, evaluate, with_constants
from braze.rewrite.editing import present

_MOST = 16 << 20  # bytes that a result may have
_MOST_IN_ALL = 64 << 20
_CPU = torch.device("cpu")


def fold_host_values(graph: Graph) -> Graph:
    """The graph with constants in the place of what is computed on the CPU from none of its
    inputs."""
    if _CPU not in devices_of(graph) or len(devices_of(graph)) == 1:
        return graph
    literals = {c.value: c.tensor for c in graph.constants if not c.tensor.dim()}
    left = _MOST_IN_ALL

    def is_wanted(node: Node, _: Collection[Value]) -> bool:
        nonlocal left
        made = list(present(node.outputs))
        size = sum(map(bytes_of, made))
        if not (_is_on_cpu(made) or _is_move(node)) or size > min(_MOST, left):
            return False
        left -= size
        return True

    values = evaluate(graph, literals, is_wanted)
    return with_constants(graph, {v: t for v, t in values.items() if v not in literals})


# --- private ---------------------------------------------------------------------------------


def _is_move(node: Node) -> bool:
    """Whether a node takes values of the CPU to another device."""
    read = operands(node)
    return bool(read) and _is_on_cpu(read)


def _is_on_cpu(values: Collection[Value]) -> bool:
    kinds = [value.type for value in values]
    return all(isinstance(kind, TensorType) and kind.device == _CPU for kind in kinds)
