"""Takes arithmetic on scalars of the CPU out of a graph for a device, as programs of the CPU.

    %3: f32[]cpu = add(%step, 1)              begin: buffer[0] = 1 - 0.9 ** (step + 1)
    %4: f64[]cpu = pow(0.9, %3)               main:  %6 = div(%x, %b0)
    %5: f64[]cpu = sub(1, %4)          ->     end:   step = step + 1
    %6: f32[64]cuda:0 = div(%x, %5)
    write %step <- %3

An optimizer counts the steps of each parameter on the CPU, and computes with the counts: a model of
364 parameters has 2,000 such operators, each a call of ATen that takes as long as a small kernel.
The two programs are one native call each. What `main` is given are numbers, so that it can be
recorded; inputs are written behind it, where nothing can fail any more, and computed once more.

Left in the graph: scalars that depend on the device, or on sizes; what may raise, draws random
numbers or makes views; and all of them where there are few.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import (
    Graph,
    Mutation,
    Node,
    Output,
    Value,
    computed_symbol,
    operands,
)
from braze.ir.graphs.host_scalars import HostCalls, HostScalars
from braze.ir.graphs.op_effects import has_effects
from braze.ir.types import TensorType, ValueType
from braze.shapes.binding import NO_SIZES
from braze.shapes.expr import Expr

_LEAST = 16  # operators: below, two more programs cost as much as they save
_FACTORIES = frozenset({aten.full.default, aten.scalar_tensor.default, aten._to_copy.default})
_RAISING = ("div", "remainder", "fmod")  # of integers, by zero


def split_host_scalars(graph: Graph) -> HostScalars | None:
    """The graph and its scalars apart; None where there are too few of them."""
    live = _live_nodes(graph)
    scalars = _scalar_nodes(graph, live)
    made = dict.fromkeys([v for n in scalars if not _is_number(n) for v in n.outputs if v])
    if len(made) < _LEAST or any(o.alias and o.alias.base in made for o in graph.outputs):
        return None
    rest = _rest(live, scalars)
    written = _writes_behind(graph, scalars, made)
    writes = [m for m in graph.mutations if m not in written]
    results = [o for o in graph.outputs if o.alias is None and o.value in made]
    own = [output for output in graph.outputs if output not in results]
    packed, fresh = _given_scalars(rest, _values_read([], own, writes), results, made)
    read = _values_read(rest, own, writes)
    kept = [n for n, v in enumerate(graph.inputs) if v in read or not _is_scalar(v.type)]
    elements = [value for values in packed for value in values]
    main = replace(
        graph,
        inputs=(*[graph.inputs[number] for number in kept], *elements, *fresh),
        constants=tuple([constant for constant in graph.constants if constant.value in read]),
        nodes=tuple(rest),
        outputs=tuple(own),
        mutations=tuple(writes),
    )
    needed = [*elements, *fresh, *[output.value for output in results]]
    begin = _with_buffers(_part(graph, scalars, needed, [*results, *map(Output, fresh)]), packed)
    end = _part(graph, scalars, [m.value for m in written], [], written)
    places = {value: number for number, value in enumerate(graph.inputs)}
    calls = HostCalls(
        begin=tuple([places[value] for value in begin.inputs if value in places]),
        main=tuple(kept),
        end=tuple([places[value] for value in end.inputs]),
        buffers=tuple([(_type_of(values[0]).dtype, len(values)) for values in packed]),
        results=_result_places(graph, results),
        own=len(results),
        inputs=len(graph.inputs),
    )
    return HostScalars(begin, main, end, calls)


# --- private ---------------------------------------------------------------------------------


def _live_nodes(graph: Graph) -> list[Node]:
    """The nodes without those that nobody reads."""
    needed = {m.value for m in graph.mutations} | {o.value for o in graph.outputs}
    needed |= {o.alias.base for o in graph.outputs if o.alias is not None}
    live = []
    for node in reversed(graph.nodes):
        if has_effects(node.op) or not needed.isdisjoint([v for v in node.outputs if v]):
            needed.update(operands(node))
            live.append(node)
    return live[::-1]


def _scalar_nodes(graph: Graph, live: Sequence[Node]) -> dict[Node, None]:
    """The nodes that compute scalars of the CPU from nothing but such."""
    given = [*graph.inputs, *[constant.value for constant in graph.constants]]
    known = {value for value in given if _is_scalar(value.type)}
    found: dict[Node, None] = {}
    for node in live:
        made = [value for value in node.outputs if value is not None]
        if not made or not known.issuperset(operands(node)):
            continue
        is_scalar = all(_is_scalar(value.type) for value in made)
        if _is_number(node) or (is_scalar and _only_computes(node, made)):
            found[node] = None
            known.update(made)
    return found


def _is_number(node: Node) -> bool:
    """Whether a node reads a scalar as the number that operators are given: all parts may do so."""
    return node.op is aten._local_scalar_dense.default and computed_symbol(node) is None


def _rest(live: Sequence[Node], scalars: Collection[Node]) -> list[Node]:
    """The nodes that stay in the graph."""
    own = {value for node in live if node not in scalars for value in operands(node)}
    return [
        node
        for node in live
        if node not in scalars or (_is_number(node) and not own.isdisjoint(node.outputs))
    ]


def _given_scalars(
    rest: Sequence[Node],
    named: Collection[Value],
    results: Sequence[Output],
    made: Collection[Value],
) -> tuple[list[list[Value]], list[Value]]:
    """The scalars that the graph is given: as elements of buffers, by dtype, and those that may
    outlive the call, which are tensors of their own. named: by the graph's results and writes."""
    read = [value for node in rest for value in operands(node) if value in made]
    outliving = {v for node in rest if _makes_views(node.op) for v in operands(node)}
    outliving |= {output.value for output in results}
    given = dict.fromkeys([*read, *[value for value in made if value in named]])
    fresh = [value for value in given if value in outliving]
    found: dict[torch.dtype, list[Value]] = {}
    for value in given:
        if value not in fresh:
            found.setdefault(_type_of(value).dtype, []).append(value)
    return [*found.values()], fresh


def _is_scalar(kind: ValueType) -> bool:
    return isinstance(kind, TensorType) and kind.device.type == "cpu" and kind.shape == ()


def _only_computes(node: Node, made: Sequence[Value]) -> bool:
    """Whether an operator neither raises nor does anything besides, and knows no sizes."""
    if not (node.op in _FACTORIES or _is_pointwise(node.op)):
        return False
    if _mentions_sizes((node.args, node.kwargs)):
        return False
    raises = any(name in node.op._schema.name for name in _RAISING)
    return not raises or all(_type_of(value).dtype.is_floating_point for value in made)


@functools.cache
def _is_pointwise(op: torch._ops.OpOverload) -> bool:
    is_tagged = torch.Tag.pointwise in op.tags and op.namespace == "aten"
    return is_tagged and not has_effects(op) and not _makes_views(op)


@functools.cache
def _makes_views(op: torch._ops.OpOverload) -> bool:
    """Whether results may lie in the memory of arguments, as far as a schema says it."""
    return any(argument.alias_info is not None for argument in op._schema.arguments)


def _mentions_sizes(argument: object) -> bool:
    if isinstance(argument, (list, tuple)):
        return any(map(_mentions_sizes, argument))
    return isinstance(argument, Expr)


def _type_of(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _writes_behind(
    graph: Graph, scalars: Mapping[Node, None], made: Collection[Value]
) -> tuple[Mutation, ...]:
    """The writes that are made at the end; none where what they read may be another by then."""
    chosen = tuple([m for m in graph.mutations if m.value in made and not m.tracked])
    others = {m.input for m in graph.mutations if m not in chosen}
    needed = _needed_for(scalars, [m.value for m in chosen])
    return chosen if others.isdisjoint(needed) else ()


def _needed_for(scalars: Iterable[Node], values: Iterable[Value]) -> set[Value]:
    """The values from which these are computed, and they themselves."""
    needed = {*values}
    for node in reversed([*scalars]):
        if not needed.isdisjoint([v for v in node.outputs if v]):
            needed.update(operands(node))
    return needed


def _part(
    graph: Graph,
    scalars: Mapping[Node, None],
    values: Sequence[Value],
    outputs: Sequence[Output],
    writes: Sequence[Mutation] = (),
) -> Graph:
    """A graph of the scalars that these values need."""
    needed = _needed_for(scalars, values) | {m.input for m in writes}
    return replace(
        graph,
        inputs=tuple([value for value in graph.inputs if value in needed]),
        constants=tuple([c for c in graph.constants if c.value in needed]),
        nodes=tuple([n for n in scalars if not needed.isdisjoint([v for v in n.outputs if v])]),
        outputs=tuple(outputs),
        mutations=tuple(writes),
        sizes=NO_SIZES,
        used_once=frozenset(),
    )


def _with_buffers(begin: Graph, packed: Sequence[Sequence[Value]]) -> Graph:
    """The graph writing values to buffers, too."""
    numbers = [v.index for v in begin.inputs] + [c.value.index for c in begin.constants]
    numbers += [v.index for node in begin.nodes for v in node.outputs if v is not None]
    free = max(numbers, default=0) + 1
    nodes, buffers, writes = [*begin.nodes], [], []
    for values in packed:
        kind = replace(_type_of(values[0]), shape=(len(values),), stride=(1,), requires_grad=False)
        buffer, whole = Value(free, kind), Value(free + 1, kind)
        free += 2
        stack = aten.stack.default
        nodes.append(Node(stack, ([*values],), (), (whole,), begin.nodes[0].origin, False))
        buffers.append(buffer)
        writes.append(Mutation(buffer, whole, tracked=False))
    return replace(
        begin,
        inputs=(*begin.inputs, *buffers),
        nodes=tuple(nodes),
        mutations=tuple(writes),
    )


def _values_read(
    nodes: Sequence[Node], outputs: Sequence[Output], writes: Sequence[Mutation]
) -> set[Value]:
    """The values that these nodes, results and writes name."""
    found = {value for node in nodes for value in operands(node)}
    found |= {output.value for output in outputs}
    found |= {output.alias.base for output in outputs if output.alias is not None}
    return found | {value for m in writes for value in (m.input, m.value)}


def _result_places(graph: Graph, results: Sequence[Output]) -> tuple[int, ...]:
    """Of each of the graph's, where it is. results: those that `begin` gives, which come first."""
    places, number = [], 0
    for output in graph.outputs:
        if output in results:
            places.append(-1 - results.index(output))
        else:
            places.append(number)
            number += 1
    return tuple(places)
