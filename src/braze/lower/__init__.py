"""Lowering: ATen operators become loops over index expressions, or stay calls of ATen.

A new operator is one decorated function in the file of its family. See `braze.lower.rules`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from braze.ir.graphs.graph import Graph, Node
from braze.ir.kernels.loops import LoopProgram
from braze.lower.devices import nodes_elsewhere, verify_targets
from braze.lower.host_scalars import split_host_scalars
from braze.lower.lowering import Lowering, Supports
from braze.lower.operators import (
    batch_norm,
    cat_pad,
    division,
    factories,
    gradients,
    indexing,
    losses,
    normalization,
    normalization_backward,
    pointwise,
    pointwise_ternary,
    pooling,
    pooling_backward,
    reductions,
    resizing,
    resizing_backward,
    scattering,
    views,
)
from braze.lower.operators.scattering import DETERMINISTIC

if TYPE_CHECKING:
    from braze.options import Options

__all__ = ["RULE_FAMILIES", "lower", "split_host_scalars", "supports_all"]

# Importing a family registers its rules.
RULE_FAMILIES = (
    batch_norm,
    cat_pad,
    division,
    factories,
    gradients,
    indexing,
    losses,
    normalization,
    normalization_backward,
    pointwise,
    pointwise_ternary,
    pooling,
    pooling_backward,
    reductions,
    resizing,
    resizing_backward,
    scattering,
    views,
)


def supports_all(op: str, dtype: torch.dtype) -> bool:
    """The predicate of a code generator that has every scalar operator."""
    return True


def lower(
    graph: Graph,
    options: Options,
    supports: Supports = supports_all,
    device: torch.device | None = None,
    seen: int = sys.maxsize,
) -> LoopProgram:
    """The graph as a loop program. Every graph lowers: what has no rule is an `ExternCall`.

    device: the kernels', where the graph has parts on another one. seen: results before that number
        go to the program, which sees what memory they are views of.
    supports: whether the code generator has a scalar operator on operands of a dtype; operators
        whose rules need one that it lacks stay calls of ATen.
    Where deterministic algorithms are asked for, what scatters or makes fresh memory stays ATen's.
    With numerics "eager" only rules that match ATen bit for bit are used, and every rounding
    stays; otherwise round trips through half types inside one operator are left out.
    """
    left_to_aten: frozenset[Node] = frozenset()
    if device is not None:
        left_to_aten = nodes_elsewhere(graph, device)
    if torch.are_deterministic_algorithms_enabled():
        left_to_aten |= frozenset([n for n in graph.nodes if str(n.op) in DETERMINISTIC])
    while True:
        lowering = Lowering(graph, options.numerics, supports, left_to_aten)
        program = lowering.run(seen)
        if lowering.unsupported <= left_to_aten:
            if device is not None:
                verify_targets(program, device)
            return program
        left_to_aten |= lowering.unsupported
