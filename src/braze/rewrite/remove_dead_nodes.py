"""Removes nodes whose results nobody reads.

    %1 = exp(%0)
    %2 = neg(%0)          ->   %2 = neg(%0)
    return %2                  return %2

Kept: what draws random numbers (the generator's state goes on as in eager), writes, returns
nothing, computes a number that sizes depend on, or is not PyTorch's own.
"""

from __future__ import annotations

from braze.ir.graphs.graph import Graph, Node, Value, computed_symbol, operands
from braze.ir.graphs.op_effects import has_effects
from braze.rewrite.editing import with_nodes


def remove_dead_nodes(graph: Graph) -> Graph:
    """The graph without dead nodes."""
    alive: set[Value | None] = {output.value for output in graph.outputs}
    alive.update(output.alias.base for output in graph.outputs if output.alias is not None)
    alive.update(mutation.value for mutation in graph.mutations)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        has_number = computed_symbol(node) is not None
        if has_number or has_effects(node.op) or any(v in alive for v in node.outputs if v):
            kept.append(node)
            alive.update(operands(node))
    return with_nodes(graph, kept[::-1], {})
