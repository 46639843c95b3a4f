"""Builds the graph that runs the forward again, for double backward.

    %1 = add(%0, %4)                  an optimizer's step, say
    %2 = with_data(%0, %1)
    %3 = mul(%2, %5)            ->    %3 = mul(%0, %5)
    output %3                         output %3
    write %0 <- %2 no_grad

It runs when the call is over. What a write under `no_grad` left in an input is there then, and is
read there, with the input's history. What no gradient goes through and was made of what an input
held before a write is gone, unless the forward gives it away as a further result:

    %2 = normalize(%1)                a step of power iteration, no_grad
    %3 = dot(%2, %0)                  %3 = dot(%2', %0)       %2' is an input
    output %3                         output %3
    write %1 <- %2            ->
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence, Set
from dataclasses import replace

from braze.compat.torch.aten import aten
from braze.compat.torch.registered_ops import with_data
from braze.ir.graphs.graph import (
    Graph,
    Node,
    Output,
    Value,
    computed_symbol,
    operands,
    replace_operands,
)
from braze.ir.graphs.joint_graph import ForwardBackward
from braze.ir.graphs.random_ops import draws
from braze.ir.types import TensorType

_BATCH_NORM = aten._native_batch_norm_legit_functional.default
_WITHOUT_STATISTICS = aten._native_batch_norm_legit.no_stats
_RUNNING_STATISTICS, _TRAIN, _RESULTS = (3, 4), 5, 3
# Bytes at most that a call gives away for a second derivative that may never be asked for.
_MOST_KEPT = 1 << 20


def keep_for_again(graph: Graph) -> Graph:
    """The graph with copies as further results of what `forward_again` cannot make again: a
    network under spectral norm has its two vectors so. The graph itself where it needs none, or
    where they are large."""
    kept = _lost(graph) if graph.mutations else []
    if not kept or sum(map(_bytes, kept)) > _MOST_KEPT:
        return graph
    made = [v.index for node in graph.nodes for v in node.outputs if v is not None]
    given = [v.index for v in (*graph.inputs, *(c.value for c in graph.constants))]
    first = max([*made, *given]) + 1
    copies = [
        Node(aten.clone.default, (value,), (), (Value(n, value.type),))
        for n, value in enumerate(kept, first)
    ]
    outputs = [Output(value) for copy in copies for value in copy.outputs if value is not None]
    return replace(graph, nodes=(*graph.nodes, *copies), outputs=(*graph.outputs, *outputs))


def forward_again(graph: Graph, pair: ForwardBackward, kept: int = 0) -> Graph | None:
    """The graph that gives the differentiable results of `pair` and writes nothing; None where they
    depend on what inputs held before the graph wrote to them.

    kept: so many results, the last that are not views, are what `keep_for_again` added; they are
    its last inputs.
    """
    written = {mutation.input for mutation in graph.mutations}
    last = len(pair.is_differentiable) - len(pair.writes)
    if any(pair.is_differentiable[last - kept : last]):  # no constants, by autograd's account
        return None
    owned = [output.value for output in graph.outputs if output.alias is None]
    values = {mutation.input: mutation.value for mutation in graph.mutations}
    outside = [values[graph.inputs[number]] for number, _ in pair.writes]
    pairs = zip((*owned, *outside), pair.is_differentiable, strict=True)
    results = [value for value, is_differentiable in pairs if is_differentiable]
    copies = owned[len(owned) - kept :]
    given = _left(graph) | _copied(graph, copies)
    nodes = _made_of(graph, {*results}, given.keys())
    if (_read(nodes) | {*results}) & (written - given.keys()):
        return None
    nodes = tuple([replace_operands(node, given) for node in nodes])
    outputs = tuple([Output(given.get(value, value)) for value in results])
    return Graph((*graph.inputs, *copies), graph.constants, nodes, outputs, (), graph.sizes)


def read_inputs(graph: Graph, count: int) -> tuple[int, ...]:
    """The numbers, of the first `count` inputs, of those that the results depend on."""
    read = _read(graph.nodes) | {output.value for output in graph.outputs}
    return tuple([number for number, value in enumerate(graph.inputs[:count]) if value in read])


# --- private ---------------------------------------------------------------------------------


def _lost(graph: Graph) -> list[Value]:
    """What differentiable results are made of that is no function of what inputs hold behind the
    call, as constants: no gradient goes through it."""
    left = _left(graph).keys()
    stale = {mutation.input for mutation in graph.mutations}
    carrying = {v for v in graph.inputs if isinstance(v.type, TensorType) and v.type.requires_grad}
    for node in graph.nodes:
        given = {*operands(node)}
        made = {value for value in node.outputs if value is not None}
        if _carries(node, carrying):
            carrying |= made - _statistics(node)
        if (given - left) & stale:
            stale |= made - left
    results = {output.value for output in graph.outputs if output.alias is None}
    results |= {mutation.value for mutation in graph.mutations if mutation.tracked}
    constant = stale - carrying
    nodes = _made_of(graph, results & carrying, left | constant)
    return sorted(_read(nodes) & constant, key=lambda value: value.index)


def _carries(node: Node, carrying: Collection[Value]) -> bool:
    """Whether gradients go through the node."""
    if node.op is with_data:
        return node.args[0] in carrying
    if node.op is aten.detach.default or not node.grad_enabled:
        return False
    return any(value in carrying for value in operands(node))


def _statistics(node: Node) -> set[Value]:
    """The running statistics that a batch norm gives, which have no gradient."""
    if node.op is not _BATCH_NORM:
        return set()
    return {value for value in node.outputs[_RESULTS:] if value is not None}


def _bytes(value: Value) -> float:
    """Of a tensor of known size; else endless."""
    kind = value.type
    if not isinstance(kind, TensorType):
        return math.inf
    known = [size for size in kind.shape if isinstance(size, int)]
    return math.prod(known) * kind.dtype.itemsize if len(known) == len(kind.shape) else math.inf


def _copied(graph: Graph, copies: Sequence[Value]) -> dict[Value, Value]:
    """What these are copies of, with the copy."""
    nodes = graph.nodes[len(graph.nodes) - len(copies) :]
    return {node.args[0]: copy for node, copy in zip(nodes, copies, strict=True)}


def _read(nodes: Sequence[Node]) -> set[Value]:
    return {value for node in nodes for value in operands(node)}


def _left(graph: Graph) -> dict[Value, Value]:
    """What writes that no history knows of left in inputs, by its value: the input."""
    made = {value: node for node in graph.nodes for value in node.outputs}
    found = {}
    for mutation in graph.mutations:
        node = made.get(mutation.value)
        if node is not None and node.op is with_data and node.args[0] is mutation.input:
            found[mutation.value] = mutation.input
    return found


def _made_of(graph: Graph, wanted: set[Value], given: Set[Value]) -> tuple[Node, ...]:
    """The nodes that make these values, of others that are given; and all that draw random numbers,
    so that the same are drawn behind them."""
    kept: list[Node] = []
    wanted = wanted - given
    for node in reversed(graph.nodes):
        stays = computed_symbol(node) is not None or draws(node.op, node.args, node.kwargs)
        if stays or any(value in wanted for value in node.outputs):
            node = _without_statistics(node, wanted)
            kept.append(node)
            wanted |= {*operands(node)} - given
    return tuple(kept[::-1])


def _without_statistics(node: Node, wanted: set[Value]) -> Node:
    """A training batch norm whose running statistics nobody wants does not read them."""
    if node.op is not _BATCH_NORM or node.args[_TRAIN] is not True:
        return node
    if any(value in wanted for value in node.outputs[_RESULTS:]):
        return node
    args = tuple([a for n, a in enumerate(node.args) if n not in _RUNNING_STATISTICS])
    return replace(node, op=_WITHOUT_STATISTICS, args=args, outputs=node.outputs[:_RESULTS])
