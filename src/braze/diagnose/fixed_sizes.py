"""A graph of symbolic sizes with the sizes of one call in their place.

    (s0 = 3)   %1: f32[s0][1]cpu = aten.sin.default(%0)   ->   %1: f32[3][1]cpu = ...

Numbers that nodes compute stay what they are: sizes out of data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from braze.ir.graphs.graph import Constant, Graph, Mutation, Node, Output, Value, computed_symbol
from braze.ir.types import ScalarType, ValueType
from braze.shapes.binding import NO_SIZES
from braze.shapes.expr import Expr, Symbol, constant_value
from braze.shapes.substitution import substitute


def with_fixed_sizes(graph: Graph, known: Mapping[Symbol, int]) -> Graph:
    """The graph for the call in which symbols have these numbers; it takes no numbers of sizes,
    and its views lead to their bases by `as_strided` alone. The graph itself where nodes compute
    sizes, or where it has no symbols."""
    if any(computed_symbol(node) is not None for node in graph.nodes) or not known:
        return graph
    values: dict[Value, Value] = {}

    def fixed(argument: object) -> Any:
        if type(argument) is Value:
            if argument not in values:
                values[argument] = replace(argument, type=_fixed_type(argument.type, known))
            return values[argument]
        if isinstance(argument, (tuple, list)):
            return type(argument)([fixed(item) for item in argument])
        return _number(argument, known) if type(argument) is Expr else argument

    def fixed_output(output: Output) -> Output:
        alias = output.alias
        if alias is not None:
            shape, stride, offset = fixed((alias.shape, alias.stride, alias.offset))
            alias = replace(
                alias, base=fixed(alias.base), shape=shape, stride=stride, offset=offset, steps=()
            )
        return replace(output, value=fixed(output.value), alias=alias)

    def fixed_node(node: Node) -> Node:
        args, kwargs, outputs = fixed((node.args, node.kwargs, node.outputs))
        return replace(node, args=args, kwargs=kwargs, outputs=outputs)

    def fixed_mutation(mutation: Mutation) -> Mutation:
        return replace(mutation, input=fixed(mutation.input), value=fixed(mutation.value))

    return replace(
        graph,
        inputs=fixed(graph.inputs),
        constants=tuple([Constant(fixed(c.value), c.tensor) for c in graph.constants]),
        nodes=tuple(map(fixed_node, graph.nodes)),
        outputs=tuple(map(fixed_output, graph.outputs)),
        mutations=tuple(map(fixed_mutation, graph.mutations)),
        sizes=NO_SIZES,
        used_once=frozenset(),
    )


# --- private ---------------------------------------------------------------------------------


def _fixed_type(kind: ValueType, known: Mapping[Symbol, int]) -> ValueType:
    if isinstance(kind, ScalarType):
        return kind
    shape, stride = ([_number(n, known) for n in sizes] for sizes in (kind.shape, kind.stride))
    return replace(kind, shape=tuple(shape), stride=tuple(stride))


def _number(size: int | Expr, known: Mapping[Symbol, int]) -> int | Expr:
    if type(size) is int:
        return size
    made = substitute(size, known)
    number = constant_value(made)
    return made if number is None else number
