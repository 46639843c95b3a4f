"""The forward once more, for a backward that is to be differentiated itself.

    %1 = add(%0, %4)                  an optimizer's step, say
    %2 = with_data(%0, %1)
    %3 = mul(%2, %5)            ->    %3 = mul(%0, %5)
    output %3                         output %3
    write %0 <- %2 no_grad

It runs when the call is over. What a write under `no_grad` left in an input is there then, and is
read there, with the input's history.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from braze.compat.operators import with_data
from braze.ir.graph import Graph, Node, Output, Value, computed_symbol, operands, replace_operands
from braze.ir.random_ops import is_random
from braze.ir.training import ForwardBackward

_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
_WITHOUT_STATISTICS = torch.ops.aten._native_batch_norm_legit.no_stats
_RUNNING_STATISTICS, _TRAIN, _RESULTS = (3, 4), 5, 3


def forward_again(graph: Graph, pair: ForwardBackward) -> Graph | None:
    """The graph that gives the differentiable results of `pair` and writes nothing; None where they
    depend on what inputs held before the graph wrote to them."""
    written = {mutation.input for mutation in graph.mutations}
    owned = [output.value for output in graph.outputs if output.alias is None]
    values = {mutation.input: mutation.value for mutation in graph.mutations}
    outside = [values[graph.inputs[number]] for number, _ in pair.writes]
    pairs = zip((*owned, *outside), pair.is_differentiable, strict=True)
    results = [value for value, is_differentiable in pairs if is_differentiable]
    left = _left(graph)
    nodes = _made_of(graph, {*results} - left.keys(), left.keys())
    read = {value for node in nodes for value in operands(node)}
    if (read | {*results}) & written:
        return None
    nodes = tuple([replace_operands(node, left) for node in nodes])
    outputs = tuple([Output(left.get(value, value)) for value in results])
    return Graph(graph.inputs, graph.constants, nodes, outputs, (), graph.sizes)


def read_inputs(graph: Graph) -> tuple[int, ...]:
    """The numbers of the inputs that the results depend on."""
    read = {value for node in graph.nodes for value in operands(node)}
    read |= {output.value for output in graph.outputs}
    return tuple([number for number, value in enumerate(graph.inputs) if value in read])


def _left(graph: Graph) -> dict[Value, Value]:
    """What writes that no history knows of left in inputs, by its value: the input."""
    made = {value: node for node in graph.nodes for value in node.outputs}
    found = {}
    for mutation in graph.mutations:
        node = made.get(mutation.value)
        if node is not None and node.op is with_data and node.args[0] is mutation.input:
            found[mutation.value] = mutation.input
    return found


def _made_of(graph: Graph, wanted: set[Value], given: Collection[Value]) -> tuple[Node, ...]:
    """The nodes that make these values, of others that are given; and all that draw random numbers,
    so that the same are drawn behind them."""
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        stays = computed_symbol(node) is not None or is_random(node.op)
        if stays or any(value in wanted for value in node.outputs):
            node = _without_statistics(node, wanted)
            kept.append(node)
            wanted |= {value for value in operands(node) if value not in given}
    return tuple(kept[::-1])


def _without_statistics(node: Node, wanted: set[Value]) -> Node:
    """A training batch norm whose running statistics nobody wants does not read them."""
    if node.op is not _BATCH_NORM or node.args[_TRAIN] is not True:
        return node
    if any(value in wanted for value in node.outputs[_RESULTS:]):
        return node
    args = tuple([a for n, a in enumerate(node.args) if n not in _RUNNING_STATISTICS])
    return replace(node, op=_WITHOUT_STATISTICS, args=args, outputs=node.outputs[:_RESULTS])
