"""Makes a graph's constants its last inputs, for the stages that plan kernels.

    constant %1: f32[8]                    input %0, input %1
    input %0                          ->   %2 = add(%0, %1)
    %2 = add(%0, %1)

To those stages equal blocks with weights of their own are equal then, as with weights that a call
brings. `schedule/bind_inputs.py` gives the schedule its constants back. Left alone: tensors of no
dimension, which become literals.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from braze.ir.graphs.graph import Graph


def hoist_constants(graph: Graph) -> tuple[Graph, tuple[torch.Tensor, ...]]:
    """The graph with its constants behind its inputs, and what they are."""
    hoisted = [constant for constant in graph.constants if constant.tensor.dim()]
    kept = [constant for constant in graph.constants if not constant.tensor.dim()]
    inputs = (*graph.inputs, *[constant.value for constant in hoisted])
    made = replace(graph, inputs=inputs, constants=tuple(kept))
    return made, tuple([constant.tensor for constant in hoisted])
