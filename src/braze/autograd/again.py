"""The forward once more, for a backward that is to be differentiated itself."""

from __future__ import annotations

import torch

from braze.ir.graph import Graph, Node, Output, Value, computed_symbol, operands
from braze.ir.training import ForwardBackward

_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
_RUNNING_STATISTICS, _TRAIN = (3, 4), 5


def forward_again(graph: Graph, pair: ForwardBackward) -> Graph | None:
    """The graph that gives the results of `pair` and writes nothing; None where the results
    depend on what inputs held before the graph wrote to them."""
    written = {mutation.input for mutation in graph.mutations}
    owned = [output.value for output in graph.outputs if output.alias is None]
    values = {mutation.input: mutation.value for mutation in graph.mutations}
    outside = [values[graph.inputs[number]] for number, _ in pair.writes]
    results = (*owned, *outside)
    nodes = _made_of(graph, set(results))
    read = {value for node in nodes for value in _read(node)} | set(results)
    if read & written:
        return None
    return Graph(graph.inputs, graph.constants, nodes, tuple(map(Output, results)), (), graph.sizes)


def _made_of(graph: Graph, wanted: set[Value]) -> tuple[Node, ...]:
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if computed_symbol(node) is not None or any(value in wanted for value in node.outputs):
            kept.append(node)
            wanted |= set(_read(node))
    return tuple(kept[::-1])


def _read(node: Node) -> list[Value]:
    """What the results of a node depend on; not a training batch norm's running statistics."""
    if node.op is _BATCH_NORM and node.args[_TRAIN] is True:
        args = [a for n, a in enumerate(node.args) if n not in _RUNNING_STATISTICS]
        return operands(Node(node.op, tuple(args), node.kwargs, node.outputs))
    return operands(node)
