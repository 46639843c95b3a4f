"""Removes from a joint graph what only eager autograd needs.

    %3 = detach(%2)                                               # saved results are detached
    %9 = native_batch_norm_backward(%8, %1, %w, %mean, ..., True)
->
    %9 = native_batch_norm_backward(%8, %1, %w, None, ..., True)  # running statistics: unused

and every node of the backward that no gradient needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import (
    Alias,
    Graph,
    Node,
    Value,
    computed_symbol,
    operands,
    replace_operands,
)
from braze.ir.graphs.joint_graph import JointGraph
from braze.ir.graphs.op_effects import has_effects

_SAME = frozenset({aten.detach.default, aten.alias.default})
_BATCH_NORM_BACKWARD = aten.native_batch_norm_backward.default
_RUNNING_STATISTICS, _TRAIN = (3, 4), 7


def simplify(joint: JointGraph, detached: Collection[Value] = ()) -> JointGraph:
    """The joint graph without detached copies of values and without dead backward nodes. detached:
    results of `detach` that stay, since gradients of the gradients will be asked for."""
    new: dict[Value, Value] = {}
    forward = _through(joint.forward.nodes, new, detached)
    backward = _through(joint.backward, new)
    gradients = tuple(None if g is None else new.get(g, g) for g in joint.gradients)
    graph = joint.forward
    outputs = tuple(
        replace(o, value=new.get(o.value, o.value), alias=_alias(o.alias, new))
        for o in graph.outputs
    )
    mutations = tuple(replace(m, value=new.get(m.value, m.value)) for m in graph.mutations)
    return replace(
        joint,
        forward=Graph(graph.inputs, graph.constants, forward, outputs, mutations, graph.sizes),
        backward=_alive(backward, {g for g in gradients if g is not None}),
        results=tuple(new.get(r, r) for r in joint.results),
        gradients=gradients,
    )


# --- private ---------------------------------------------------------------------------------


def _through(
    nodes: tuple[Node, ...], new: dict[Value, Value], detached: Collection[Value] = ()
) -> tuple[Node, ...]:
    kept: list[Node] = []
    for node in nodes:
        if new:
            node = replace_operands(node, new)
        if node.op in _SAME and node.outputs[0] is not None and node.outputs[0] not in detached:
            source = node.args[0]
            if source.type == node.outputs[0].type or _is_same_memory(source, node.outputs[0]):
                new[node.outputs[0]] = source
                continue
        kept.append(_without_running_statistics(node))
    return tuple(kept)


def _is_same_memory(a: Value, b: Value) -> bool:
    return str(a.type) == str(b.type)  # but for requires_grad


def _without_running_statistics(node: Node) -> Node:
    if node.op is not _BATCH_NORM_BACKWARD or node.args[_TRAIN] is not True:
        return node
    args = tuple(None if n in _RUNNING_STATISTICS else a for n, a in enumerate(node.args))
    return replace(node, args=args)


def _alias(alias: Alias | None, new: Mapping[Value, Value]) -> Alias | None:
    return None if alias is None else replace(alias, base=new.get(alias.base, alias.base))


def _alive(nodes: tuple[Node, ...], wanted: set[Value]) -> tuple[Node, ...]:
    kept: list[Node] = []
    for node in reversed(nodes):
        if (
            computed_symbol(node)
            or has_effects(node.op)
            or any(value in wanted for value in node.outputs)
        ):
            kept.append(node)
            wanted.update(operands(node))
    return tuple(kept[::-1])
