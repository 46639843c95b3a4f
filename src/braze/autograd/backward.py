"""Builds the backward graph for a choice of saved values.

    saved: %1                          input %1, %5
    forward: %2 = relu(%1)      ->     %2 = relu(%1)                  # computed again
    backward: %6 = mul(%5, %2)         %6 = mul(%5, %2)

Forward nodes that are neither saved nor random are put before their first reader.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import Graph, Node, Output, Value, operands
from braze.ir.graphs.graph_sizes import told_sizes
from braze.ir.graphs.joint_graph import Backward, JointGraph, joint_as_graph
from braze.ir.graphs.op_effects import has_effects
from braze.ir.types import TensorType
from braze.tracing.shape_rules.strides import channels_last_stride


@final
class NotSaved(Exception):
    """The backward needs a value that was not saved and cannot be computed again."""


def backward_graph(
    joint: JointGraph, saved: Sequence[Value], moved: Sequence[tuple[Value, Value]] = ()
) -> Backward:
    """The backward of a joint graph. Raises NotSaved.

    saved: values of this trace, or of another trace of the same graph, which numbers them alike.
    moved: as of the joint graph of the other trace.
    """
    known = _forward_values(joint)
    inputs, copies = _inputs(joint, known, saved, dict(moved))
    makers = {v: node for node in joint.forward.nodes for v in node.outputs if v is not None}
    tangents = [number for number, tangent in enumerate(joint.tangents) if tangent is not None]
    given = [tangent for tangent in joint.tangents if tangent is not None]
    ready = {*inputs, *given, *(constant.value for constant in joint.forward.constants)}
    ready.update(value for node in copies for value in node.outputs if value is not None)
    nodes = list(copies)
    for node in joint.backward:
        for value in operands(node):
            _make(value, makers, ready, nodes)
        nodes.append(node)
        ready.update(value for value in node.outputs if value is not None)
    gradients = list(dict.fromkeys(g for g in joint.gradients if g is not None))
    for gradient in gradients:
        _make(gradient, makers, ready, nodes)
    numbers = {gradient: number for number, gradient in enumerate(gradients)}
    used = {value for node in nodes for value in operands(node)} | set(gradients)
    graph = Graph(
        inputs=(*inputs, *given),
        constants=tuple(c for c in joint.forward.constants if c.value in used),
        nodes=tuple(replace(node, grad_enabled=False) for node in nodes),
        outputs=tuple(Output(gradient) for gradient in gradients),
        mutations=(),
    )
    graph = replace(graph, sizes=told_sizes(graph, joint.derived))
    places = tuple(None if g is None else numbers[g] for g in joint.gradients)
    return Backward(graph, tuple(tangents), places)


def with_zeros(backward: Backward, given: Sequence[bool]) -> Backward:
    """The backward for all tangents, made one for those given: zeros stand for the others, and
    gradients that no given one reaches are undefined."""
    graph = backward.graph
    first = len(graph.inputs) - len(backward.tangents)
    tangents = dict(zip(backward.tangents, graph.inputs[first:], strict=True))
    reached = {tangent for number, tangent in tangents.items() if given[number]}
    for node in graph.nodes:
        if not reached.isdisjoint(operands(node)):
            reached.update(value for value in node.outputs if value is not None)
    zeros = [_zeros(tangent) for number, tangent in tangents.items() if not given[number]]
    inputs = [tangent for number, tangent in tangents.items() if given[number]]
    made = replace(graph, inputs=(*graph.inputs[:first], *inputs), nodes=(*zeros, *graph.nodes))
    return Backward(
        replace(made, sizes=told_sizes(made, graph.sizes.derived)),
        tuple(number for number in backward.tangents if given[number]),
        tuple(
            None if n is None or graph.outputs[n].value not in reached else n
            for n in backward.gradients
        ),
    )


# --- private ---------------------------------------------------------------------------------


def _zeros(value: Value) -> Node:
    kind = value.type
    assert isinstance(kind, TensorType)
    options = (("dtype", kind.dtype), ("device", kind.device))
    zeros = aten.zeros.default
    return Node(zeros, (kind.shape,), options, (value,), grad_enabled=False)


def _inputs(
    joint: JointGraph,
    known: Mapping[int, Value],
    saved: Sequence[Value],
    moved: Mapping[Value, Value],
) -> tuple[list[Value], list[Node]]:
    """The saved values in this trace's numbering, and what makes row-major images of those that
    were saved in another layout."""
    whole = joint_as_graph(joint)
    made = (value for node in whole.nodes for value in node.outputs if value is not None)
    numbers = itertools.count(1 + max(value.index for value in (*whole.inputs, *made)))
    plain = {known[value.index] for value in saved if value.index in known}
    inputs, copies = [], []
    for value in saved:
        if value.index in known:
            inputs.append(known[value.index])
            continue
        if value not in moved:  # a graph pass added it to the other trace
            raise NotSaved(f"{value} is not in this trace")
        image = known[moved[value].index]
        assert isinstance(image.type, TensorType)
        stride = channels_last_stride(image.type.shape)
        inputs.append(Value(next(numbers), replace(image.type, stride=stride)))
        if image not in plain:
            kwargs = (("memory_format", torch.contiguous_format),)
            copies.append(Node(aten.clone.default, (inputs[-1],), kwargs, (image,)))
    return inputs, copies


def _forward_values(joint: JointGraph) -> dict[int, Value]:
    graph = joint.forward
    made = (value for node in graph.nodes for value in node.outputs if value is not None)
    return {value.index: value for value in (*graph.inputs, *made)}


def _make(value: Value, makers: dict[Value, Node], ready: set[Value], nodes: list[Node]) -> None:
    """Append the nodes that make a value from what is ready; no recursion, graphs are deep."""
    pending = [value]
    while pending:
        wanted = pending[-1]
        if wanted in ready:
            pending.pop()
            continue
        node = makers.get(wanted)
        if node is None or has_effects(node.op):
            raise NotSaved(f"{wanted} of {node.op if node else 'the inputs'} was not saved")
        missing = [operand for operand in operands(node) if operand not in ready]
        if missing:
            pending.extend(missing)
            continue
        nodes.append(node)
        ready.update(result for result in node.outputs if result is not None)
        pending.pop()
