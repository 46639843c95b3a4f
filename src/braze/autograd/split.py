"""Splits a joint graph into forward and backward graphs for a choice of saved values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from braze.compat.torch.aten import aten
from braze.compat.torch.registered_ops import TRAINING_FORMS, with_data
from braze.ir.graphs.graph import (
    Graph,
    Node,
    Output,
    Value,
    computed_symbol,
    first_result,
    operands,
)
from braze.ir.graphs.joint_graph import (
    Backward,
    ForwardBackward,
    JointGraph,
    Saved,
    SavedInput,
    SavedOutput,
    ViewOfInput,
    ViewOfResult,
    joint_as_graph,
)
from braze.ir.graphs.version_counters import counted_again
from braze.ir.types import TensorType
from braze.shapes.expr import Symbol, as_expr


def split(joint: JointGraph, saved: Sequence[Value], backward: Backward) -> ForwardBackward:
    """The forward graph with saved values as further outputs, and what the runtime is to know.

    A saved input that the graph writes to is saved as a copy of what it was. What is read of it
    behind its last write is saved as the input itself, which autograd's own nodes would save: a
    later write through `.data` changes it, and another one makes the backward raise.
    """
    graph = joint.forward
    inputs = {value: number for number, value in enumerate(graph.inputs)}
    written = {mutation.input for mutation in graph.mutations}
    outside = {graph.inputs[number] for number in joint.writes}
    left = left_in_inputs(joint)
    outputs = list(joint.results)
    numbers = {value: number for number, value in enumerate(outputs)}
    fresh = _fresh_numbers(joint)
    copies: list[Node] = []
    kept: list[Saved] = []
    read = {value for node in joint.backward for value in operands(node)}
    for value in saved:
        if value in inputs and value not in written:
            kept.append(SavedInput(inputs[value], as_view=value not in read))
            continue
        if value in left:
            kept.append(SavedInput(left[value], as_view=value not in read))
            continue
        if value in inputs:
            copies.append(_copy(value, next(fresh)))
            outputs.append(first_result(copies[-1]))
        elif value not in numbers:
            numbers[value] = len(outputs)
            outputs.append(value)
        kept.append(SavedOutput(len(outputs) - 1 if value in inputs else numbers[value]))
    forward = Graph(
        inputs=graph.inputs,
        constants=graph.constants,
        nodes=(*copies, *map(_for_training, graph.nodes)),
        outputs=_with_versions(outputs, graph),
        mutations=tuple(m for m in graph.mutations if m.input not in outside),
        sizes=graph.sizes,
    )
    forward, computed = _with_numbers(forward, fresh)
    first = len(joint.results) - len(joint.writes)
    again = [number for number in counted_again(graph) if graph.inputs[number] in outside]
    return ForwardBackward(
        forward=forward,
        saved=tuple(kept),
        saved_values=tuple(saved),
        backward=backward,
        is_differentiable=joint.is_differentiable,
        writes=tuple((number, first + n) for n, number in enumerate(joint.writes)),
        outputs=_outputs(graph, inputs),
        freed_by=joint.freed_by,
        reached_from=joint.reached_from,
        computed=computed,
        moved=joint.moved,
        written_again=tuple(again),
    )


def left_in_inputs(joint: JointGraph) -> dict[Value, int]:
    """What the graph leaves in inputs by writes that autograd did not see, and reads with
    gradients, with the numbers of the inputs."""
    graph = joint.forward
    read = {value for node in graph.nodes if node.op is with_data for value in node.outputs}
    outside = {graph.inputs[number] for number in joint.writes}
    return {
        mutation.value: graph.inputs.index(mutation.input)
        for mutation in graph.mutations
        if mutation.value in read and mutation.input not in outside
    }


# --- private ---------------------------------------------------------------------------------


def _fresh_numbers(joint: JointGraph) -> Iterator[int]:
    whole = joint_as_graph(joint)
    made = [v.index for node in whole.nodes for v in node.outputs if v is not None]
    given = [v.index for v in (*whole.inputs, *(c.value for c in whole.constants))]
    return itertools.count(max([*made, *given], default=-1) + 1)


def _for_training(node: Node) -> Node:
    """The node such that its kernel makes what the backward needs, though gradients are off."""
    form = TRAINING_FORMS.get(node.op)
    return node if form is None else replace(node, op=form)


def _with_versions(values: Sequence[Value], graph: Graph) -> tuple[Output, ...]:
    """The results, which come first and have the versions of the graph's own, and what is saved."""
    versions = [output.version for output in graph.outputs if output.alias is None]
    return tuple(
        [Output(value, version=n) for value, n in zip(values, itertools.chain(versions, _NONE))]
    )


_NONE = itertools.repeat(0)


def _copy(value: Value, number: int) -> Node:
    return Node(aten.clone.default, (value,), (), (Value(number, value.type),))


def _with_numbers(graph: Graph, fresh: Iterator[int]) -> tuple[Graph, tuple[Symbol, ...]]:
    """The graph with the numbers that it computes as further results, and their symbols."""
    found = [s for s in map(computed_symbol, graph.nodes) if s is not None]
    if not found:
        return graph, ()
    cpu = torch.device("cpu")
    kind = TensorType(torch.int64, (), (), cpu)
    options = (("dtype", torch.int64), ("device", cpu))
    values = [Value(next(fresh), kind) for _ in found]
    numbers = [
        Node(aten.full.default, ((), as_expr(symbol)), options, (value,))
        for symbol, value in zip(found, values, strict=True)
    ]
    nodes, outputs = (*graph.nodes, *numbers), (*graph.outputs, *map(Output, values))
    return replace(graph, nodes=nodes, outputs=outputs), tuple(found)


def _outputs(
    graph: Graph, inputs: dict[Value, int]
) -> tuple[int | ViewOfInput | ViewOfResult, ...]:
    owned: dict[Value, int] = {}
    for output in graph.outputs:
        if output.alias is None:
            owned[output.value] = len(owned)
    made: list[int | ViewOfInput | ViewOfResult] = []
    for output in graph.outputs:
        if output.alias is None:
            made.append(owned[output.value])
        elif output.alias.base in inputs:
            made.append(ViewOfInput(inputs[output.alias.base], output))
        else:
            made.append(ViewOfResult(owned[output.alias.base], output))
    return tuple(made)
