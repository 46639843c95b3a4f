"""Shared functions of passes: walking arguments, replacing values, escape analysis."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from braze.ir.graphs.graph import Alias, Graph, Node, Value, operands, values_in
from braze.ir.types import Size, TensorType
from braze.shapes.expr import as_expr, constant_value, simplified, symbols
from braze.shapes.substitution import evaluate


def with_nodes(graph: Graph, nodes: Sequence[Node], replacements: Mapping[Value, Value]) -> Graph:
    """The graph with other nodes, its results and write-backs reading the replacements."""
    if len(nodes) == len(graph.nodes) and not replacements:
        return graph

    def new(value: Value) -> Value:
        return replacements.get(value, value)

    def new_alias(alias: Alias | None) -> Alias | None:
        return None if alias is None else replace(alias, base=new(alias.base))

    outputs = tuple(replace(o, value=new(o.value), alias=new_alias(o.alias)) for o in graph.outputs)
    mutations = tuple(replace(m, value=new(m.value)) for m in graph.mutations)
    return replace(graph, nodes=tuple(nodes), outputs=outputs, mutations=mutations)


@functools.cache
def is_view(op: torch._ops.OpOverload) -> bool:
    """Whether the operator's results alias an argument without writing to it."""
    return any(
        argument.alias_info is not None and not argument.alias_info.is_write
        for argument in op._schema.arguments
    )


def escaping_values(graph: Graph) -> set[Value]:
    """The values whose memory the caller gets to see, as a result or through a view of it."""
    escaping = {output.value for output in graph.outputs}
    escaping.update(o.alias.base for o in graph.outputs if o.alias is not None)
    for node in reversed(graph.nodes):
        if is_view(node.op) and any(value in escaping for value in node.outputs):
            escaping.update(values_in(node.args[:1]))
    return escaping


def present(values: Iterable[Value | None]) -> Iterator[Value]:
    """The values that are there."""
    return (value for value in values if value is not None)


def readers_of(graph: Graph) -> dict[Value, list[Node]]:
    """The nodes that read each value, in order; one that reads it twice is there twice."""
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in operands(node):
            readers.setdefault(value, []).append(node)
    return readers


def seen_values(graph: Graph) -> set[Value]:
    """The values that results, the bases of results and write-backs are."""
    seen = {output.value for output in graph.outputs}
    seen.update(o.alias.base for o in graph.outputs if o.alias is not None)
    seen.update(mutation.value for mutation in graph.mutations)
    return seen


def type_of(value: object) -> TensorType:
    """The type of an argument that is a tensor."""
    assert isinstance(value, Value) and isinstance(value.type, TensorType)
    return value.type


def fresh_numbers(graph: Graph) -> Iterator[int]:
    """Numbers that no value of the graph has."""
    made = [*graph.inputs, *(constant.value for constant in graph.constants)]
    made += [value for node in graph.nodes for value in present(node.outputs)]
    return itertools.count(1 + max((value.index for value in made), default=0))


def at_hand(size: Size) -> int:
    """A size as it was when the program was traced."""
    expr = as_expr(size)
    return evaluate(expr, {s: s.hint or 1 for s in symbols(expr)})


def row_major(shape: Sequence[Size]) -> tuple[Size, ...]:
    """The strides of a tensor whose rows are beside each other."""
    steps: list[Size] = [1]
    for size in reversed(shape[1:]):
        step = as_expr(steps[-1]) * size
        constant = constant_value(step)
        steps.append(simplified(step) if constant is None else constant)
    return tuple(reversed(steps))
