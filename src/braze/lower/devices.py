"""Graphs on a device with parts on the CPU: those stay calls of ATen.

%2: f64[]cpu = add(%step, 1)           extern
%3: f32[64]cuda:0 = mul(%x, %2)        a kernel, which is given the number in %2
"""

from __future__ import annotations

import torch

from braze.errors import InternalError
from braze.ir.graphs.graph import Graph, Node, operands
from braze.ir.kernels.loops import Definition, LoopProgram
from braze.ir.types import TensorType


def nodes_elsewhere(graph: Graph, device: torch.device) -> frozenset[Node]:
    """The nodes that kernels of `device` cannot compute: their results are on another one, or they
    read more than a number there."""
    return frozenset([node for node in graph.nodes if _is_elsewhere(node, device)])


def verify_targets(program: LoopProgram, device: torch.device) -> None:
    """Raise where a kernel of `device` would write to other memory: it would be the host's."""
    for statement in program.statements:
        if isinstance(statement, Definition) and statement.target.device != device:
            what = f"a kernel for {device} would write to {statement.target.device}"
            raise InternalError("lower", what, origin=statement.origin)


def _is_elsewhere(node: Node, device: torch.device) -> bool:
    made = [value.type for value in node.outputs if value is not None]
    read = [value.type for value in operands(node)]
    return any(isinstance(t, TensorType) and t.device != device for t in made) or any(
        isinstance(t, TensorType) and t.device != device and t.shape != () for t in read
    )
