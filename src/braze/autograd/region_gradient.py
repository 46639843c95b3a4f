"""The gradients of a region: an operator whose graphs are those of the region, continued.

    graph { input %0                     graph { input %0; input %2       # the gradient of %1
      %1 = sin(%0)              ->         %3 = cos(%0); %4 = mul(%2, %3)
      output %1 }                          output %4 }                    # the gradient of %0

What the backward needs of the forward is computed again, in the branch that was taken. An operand
that a branch does not read gets zeros there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from braze.autograd.joint import NotDifferentiable, trace_joint
from braze.compat.torch.aten import aten
from braze.compat.torch.dispatcher import WithoutModes
from braze.ir.graphs.graph import Graph, Node, Output, Value, operands, replace_operands
from braze.ir.graphs.joint_graph import JointGraph
from braze.ir.graphs.region import LoopGradient, RegionKind, RegionOp
from braze.ir.origin import UNKNOWN
from braze.ir.types import Size, TensorType
from braze.tracing.regions import makes_own


def differentiate_region(
    op: RegionOp, wanted: tuple[bool, ...], given: tuple[bool, ...]
) -> RegionOp:
    """The operator for the gradients of operands, from those of results that are given."""
    if op.kind is RegionKind.WHILE_GRADIENT:
        raise NotDifferentiable("gradients of gradients through while_loop", UNKNOWN)
    if op.kind is RegionKind.SCAN_GRADIENT:
        raise NotDifferentiable("gradients of gradients through scan or map", UNKNOWN)
    ones = (True,) * sum(wanted)
    if op.kind is RegionKind.WHILE:
        flows = op.differentiable
        condition, body = op.graphs
        gradient = gradient_graph(body, (*flows, *wanted[len(flows) :]), flows)
        graphs: tuple[Graph, ...] = (condition, body, gradient)
        loop = LoopGradient(flows, given, wanted)
        return RegionOp(RegionKind.WHILE_GRADIENT, graphs, ones, differentiate_region, loop=loop)
    if op.kind is RegionKind.SCAN:
        (body,), flows = op.graphs, op.differentiable[: op.carried]
        gradient = gradient_graph(
            body, (*flows, *wanted[op.carried :]), (*flows, *given[op.carried :])
        )
        made = RegionOp(RegionKind.SCAN_GRADIENT, (body, gradient), ones, differentiate_region)
        loop = LoopGradient(flows, given, wanted)
        return replace(made, loop=loop, carried=op.carried, rows=op.rows)
    first = 1 if op.kind is RegionKind.COND else 0
    graphs = tuple([gradient_graph(graph, wanted[first:], given) for graph in op.graphs])
    return RegionOp(op.kind, graphs, ones, differentiate_region)


def gradient_graph(
    graph: Graph,
    wanted: Sequence[bool],
    given: Sequence[bool],
    missing: list[int] | None = None,
) -> Graph:
    """The graph from a region's operands, and the gradients of its results that are given, to the
    gradients of the operands that are wanted, each contiguous and in memory of its own. missing:
    gets the operands that have no gradient, which the graph then leaves out; None: zeros stand for
    such gradients."""
    with WithoutModes():  # the trace of the graph around the region goes on behind it
        joint = trace_joint(asking(graph, wanted), given, keeps_detached=True)
    forward, makers = joint.forward, _makers(joint)
    top = max([-1, *[v.index for v in (*forward.inputs, *makers, *joint.tangents) if v]])
    numbers = itertools.count(top + 1)
    tangents = [
        Value(next(numbers), dense(result.type)) if tangent is None else tangent
        for result, tangent, is_given in zip(joint.results, joint.tangents, given, strict=True)
        if is_given
    ]
    inputs = (*forward.inputs, *tangents)
    # Formulas run without gradients in the trace; they have gradients themselves.
    formulas = [replace(node, grad_enabled=True) for node in joint.backward]
    nodes, outputs = [*forward.nodes, *formulas], list[Value]()
    triples = zip(forward.inputs, joint.gradients, wanted, strict=True)
    for number, (value, gradient, wants) in enumerate(triples):
        if gradient is None and wants and missing is not None:
            missing.append(number)
            continue
        if not wants:
            continue
        kind = dense(value.type)
        maker = None if gradient is None else makers.get(gradient)
        is_own = maker is not None and makes_own(maker.op)
        if gradient is None or not is_own or gradient.type != kind or gradient in outputs:
            nodes.append(_made(gradient, kind, numbers))
            gradient = nodes[-1].outputs[0]
        assert gradient is not None
        outputs.append(gradient)
    live = tuple(_live(nodes, outputs))
    return replace(
        forward, inputs=inputs, nodes=live, outputs=tuple(map(Output, outputs)), mutations=()
    )


def asking(graph: Graph, wanted: Sequence[bool]) -> Graph:
    """The graph with inputs that need gradients where they are wanted."""
    new: dict[Value, Value] = {}
    for value, wants in zip(graph.inputs, wanted, strict=True):
        kind = value.type
        assert isinstance(kind, TensorType)
        new[value] = Value(value.index, replace(kind, requires_grad=wants))
    return replace(
        graph,
        inputs=tuple(new.values()),
        nodes=tuple([replace_operands(node, new) for node in graph.nodes]),
        outputs=tuple([replace(o, value=new.get(o.value, o.value)) for o in graph.outputs]),
    )


def dense(kind: object) -> TensorType:
    """The contiguous type of the same shape."""
    assert isinstance(kind, TensorType)
    stride: list[Size] = []
    following: Size = 1
    for size in reversed(kind.shape):
        stride.append(following)
        following = following * (max(size, 1) if type(size) is int else size)
    return TensorType(kind.dtype, kind.shape, tuple(reversed(stride)), kind.device)


# --- private ---------------------------------------------------------------------------------


def _makers(joint: JointGraph) -> dict[Value, Node]:
    nodes = (*joint.forward.nodes, *joint.backward)
    return {value: node for node in nodes for value in node.outputs if value is not None}


def _made(gradient: Value | None, kind: TensorType, numbers: Iterator[int]) -> Node:
    """A gradient as a tensor of its own; zeros where there is none."""
    result = (Value(next(numbers), kind),)
    if gradient is not None:
        contiguous = (("memory_format", torch.contiguous_format),)
        return Node(aten.clone.default, (gradient,), contiguous, result)
    made = (("dtype", kind.dtype), ("device", kind.device))
    return Node(aten.zeros.default, (kind.shape,), made, result)


def _live(nodes: Sequence[Node], outputs: Sequence[Value]) -> list[Node]:
    used, kept = set(outputs), []
    for node in reversed(nodes):
        if any(value in used for value in node.outputs):
            kept.append(node)
            used.update(operands(node))
    kept.reverse()
    return kept
