"""Removes operators that return what they were given.

    %1 = expand(%0, [4, 8])       # %0 is [4, 8] already
    %2 = _to_copy(%1, float32)    # is float32 already      ->   %3 = exp(%0)
    %3 = exp(%2)

    %2 = where(%0, %1, %1)        # two equal branches  ->   %3 = exp(%1)
    %3 = exp(%2)

A copy goes only if its result has the type of its source, strides included, and neither the
caller nor a write-back can tell them apart: a copy that reaches a result stays.
"""

from __future__ import annotations

from braze.ir.graphs.graph import Graph, Node, Value, replace_operands
from braze.ir.types import TensorType
from braze.rewrite.editing import escaping_values, with_nodes

_COPIES = frozenset(
    {
        "aten.clone.default",
        "aten._to_copy.default",
        "aten.lift_fresh_copy.default",
        "aten.alias_copy.default",
        "aten.detach_copy.default",
        "aten.expand_copy.default",
        "aten.view_copy.default",
    }
)
_VIEWS = frozenset(
    {
        "aten.alias.default",
        "aten.detach.default",
        "aten.expand.default",
        "aten.view.default",
        "aten._unsafe_view.default",
        "aten.lift_fresh.default",
        "aten._reshape_alias.default",
    }
)

_SELECT = "aten.where.self"


def remove_redundant_copies(graph: Graph) -> Graph:
    """The graph without copies, casts and views that change nothing."""
    escaping = escaping_values(graph)
    written = {mutation.input for mutation in graph.mutations}
    replacements: dict[Value, Value] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        node = replace_operands(node, replacements)
        name = str(node.op)
        selects_one = name == _SELECT and node.args[1] is node.args[2]
        if name in _VIEWS or name in _COPIES or selects_one:
            source, result = node.args[1 if selects_one else 0], node.outputs[0]
            assert result is not None
            is_private = name in _VIEWS or not (result in escaping or source in written)
            if is_private and is_same_layout(source, result):
                replacements[result] = source
                continue
        kept.append(node)
    return with_nodes(graph, kept, replacements)


def is_same_layout(first: Value, second: Value) -> bool:
    """Whether two tensors have the same dtype, shape, strides and device."""
    a, b = first.type, second.type
    return (
        isinstance(a, TensorType)
        and isinstance(b, TensorType)
        and (a.dtype, a.shape, a.stride, a.device) == (b.dtype, b.shape, b.stride, b.device)
    )
