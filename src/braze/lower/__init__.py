"""Lowering: ATen operators become loops over index expressions, or stay calls of ATen.

A new operator is one decorated function in the file of its family. See `braze.lower.rules`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braze.ir.graph import Graph
from braze.ir.loops import LoopProgram
from braze.lower import (
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
    views,
)
from braze.lower.lowering import Lowering

if TYPE_CHECKING:
    from braze.options import Options

__all__ = ["RULE_FAMILIES", "lower"]

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
    views,
)


def lower(graph: Graph, options: Options) -> LoopProgram:
    """The graph as a loop program. Every graph lowers: what has no rule is an `ExternCall`.

    With numerics "eager" only rules that match ATen bit for bit are used, and every rounding
    stays; otherwise round trips through half types inside one operator are left out.
    """
    return Lowering(graph, options.numerics).run()
