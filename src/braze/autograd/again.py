"""The forward once more, for a backward that is to be differentiated itself."""

from __future__ import annotations

from dataclasses import replace

import torch

from braze.ir.graph import Graph, Node, Output, Value, computed_symbol, operands
from braze.ir.training import ForwardBackward

_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
_WITHOUT_STATISTICS = torch.ops.aten._native_batch_norm_legit.no_stats
_RUNNING_STATISTICS, _TRAIN, _RESULTS = (3, 4), 5, 3


def forward_again(graph: Graph, pair: ForwardBackward) -> Graph | None:
    """The graph that gives the results of `pair` and writes nothing; None where the results
    depend on what inputs held before the graph wrote to them."""
    written = {mutation.input for mutation in graph.mutations}
    owned = [output.value for output in graph.outputs if output.alias is None]
    values = {mutation.input: mutation.value for mutation in graph.mutations}
    outside = [values[graph.inputs[number]] for number, _ in pair.writes]
    results = (*owned, *outside)
    nodes = _made_of(graph, set(results))
    read = {value for node in nodes for value in operands(node)} | set(results)
    if read & written:
        return None
    return Graph(graph.inputs, graph.constants, nodes, tuple(map(Output, results)), (), graph.sizes)


def read_inputs(graph: Graph) -> tuple[int, ...]:
    """The numbers of the inputs that the results depend on."""
    read = {value for node in graph.nodes for value in operands(node)}
    read |= {output.value for output in graph.outputs}
    return tuple([number for number, value in enumerate(graph.inputs) if value in read])


def _made_of(graph: Graph, wanted: set[Value]) -> tuple[Node, ...]:
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if computed_symbol(node) is not None or any(value in wanted for value in node.outputs):
            node = _without_statistics(node, wanted)
            kept.append(node)
            wanted |= set(operands(node))
    return tuple(kept[::-1])


def _without_statistics(node: Node, wanted: set[Value]) -> Node:
    """A training batch norm whose running statistics nobody wants does not read them."""
    if node.op is not _BATCH_NORM or node.args[_TRAIN] is not True:
        return node
    if any(value in wanted for value in node.outputs[_RESULTS:]):
        return node
    args = tuple([a for n, a in enumerate(node.args) if n not in _RUNNING_STATISTICS])
    return replace(node, op=_WITHOUT_STATISTICS, args=args, outputs=node.outputs[:_RESULTS])
