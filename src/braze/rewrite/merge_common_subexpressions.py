"""Merges nodes that compute the same thing.

    %1 = exp(%0)
    %2 = exp(%0)              ->   %1 = exp(%0)
    %3 = add(%1, %2)               %3 = add(%1, %1)

A node whose result escapes to the caller is never dropped, since two results must not become one
tensor. Operators with effects, random ones among them, are left alone.
"""

from __future__ import annotations

from typing import Any

from braze.ir.graphs.graph import Graph, Node, Value, replace_operands
from braze.ir.graphs.op_effects import has_effects
from braze.rewrite.editing import (
    escaping_values,
    present,
    with_nodes,
)


def merge_common_subexpressions(graph: Graph) -> Graph:
    """The graph with each private computation done once."""
    escaping = escaping_values(graph)
    seen: dict[Any, Node] = {}
    replacements: dict[Value, Value] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        node = replace_operands(node, replacements)
        kept.append(node)
        if has_effects(node.op):
            continue
        key = (node.op, _key(node.args), _key(node.kwargs), node.grad_enabled)
        first = seen.setdefault(key, node)
        if first is node or not _may_replace(node, first, escaping):
            continue
        kept.pop()
        for old, new in zip(node.outputs, first.outputs, strict=True):
            if old is not None and new is not None:
                replacements[old] = new
    return with_nodes(graph, kept, replacements)


def _may_replace(node: Node, first: Node, escaping: set[Value]) -> bool:
    if any(value in escaping for value in present(node.outputs)):
        return False
    return all(
        (a is None) == (b is None) and (a is None or b is None or a.type == b.type)
        for a, b in zip(node.outputs, first.outputs, strict=True)
    )


def _key(argument: object) -> object:
    """Hashable and exact: 1, 1.0 and True are different arguments, and so are 0.0 and -0.0."""
    if isinstance(argument, (list, tuple)):
        return tuple(map(_key, argument))
    if isinstance(argument, float):
        return (float, argument.hex())
    if isinstance(argument, (bool, int)):
        return (type(argument), argument)
    return argument
