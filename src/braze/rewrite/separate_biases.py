"""Takes the biases of convolutions on a GPU out of the library's call.

    %3 = convolution(%0, %1, %2, ...)            %4 = convolution(%0, %1, None, ...)
                                           ->    %5 = view(%2, [8, 1, 1])
                                                 %3 = add(%4, %5)

    %5, %6, %7 = convolution_backward(...)       %5, %6, None = convolution_backward(...)
                                           ->    %7 = sum(%0, [0, 2, 3])

The library adds a bias by a kernel of its own that reads and writes the whole image again, and sums
its gradient by another: here both fuse with what is around them. Convolutions of each channel by
itself, which add the bias while they compute, keep it unless something element by element follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import Graph, Node, Value
from braze.ir.types import TensorType
from braze.rewrite.editing import fresh_numbers, readers_of, row_major, type_of

_FORWARD = aten.convolution.default
_BACKWARD = aten.convolution_backward.default


def separate_biases(graph: Graph, devices: Sequence[str] = ("cuda",)) -> Graph:
    """The graph with biases added, and their gradients summed, apart from convolutions on these
    types of devices."""
    if not any(_has_bias(node, devices) for node in graph.nodes):
        return graph
    writer = _Separated(graph)
    for node in graph.nodes:
        if not _has_bias(node, devices):
            writer.nodes.append(node)
        elif node.op is _FORWARD:
            writer.add_forward(node)
        else:
            writer.add_backward(node)
    return replace(graph, nodes=tuple(writer.nodes))


# --- private ---------------------------------------------------------------------------------


def _has_bias(node: Node, devices: Sequence[str]) -> bool:
    """Whether a convolution adds a bias, or one's backward sums the gradient of one."""
    if node.op is _FORWARD:
        has_bias = node.args[2] is not None and node.outputs[0] is not None
    elif node.op is _BACKWARD:
        has_bias = node.outputs[2] is not None
    else:
        return False
    return has_bias and not node.kwargs and type_of(node.args[0]).device.type in devices


@final
class _Separated:
    """Writes the nodes anew; what a node made has its own name still."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self._readers: Mapping[Value, list[Node]] = readers_of(graph)
        self._numbers = fresh_numbers(graph)

    def add_forward(self, node: Node) -> None:
        """A convolution, and its bias added to what it makes."""
        image, weight, bias, *rest = node.args
        (made,) = node.outputs
        assert made is not None
        per_channel = rest[-1] != 1 and type_of(weight).shape[1] == 1 and not rest[3]
        if per_channel and not any(_is_pointwise(r.op) for r in self._readers.get(made, ())):
            self.nodes.append(node)
            return
        kind, of_bias = type_of(made), type_of(bias)
        plain = self._new(kind)
        shape = (of_bias.shape[0], *(1,) * (len(kind.shape) - 2))
        column = self._new(
            replace(of_bias, shape=shape, stride=(of_bias.stride[0], *row_major(shape)[1:]))
        )
        convolution = replace(node, args=(image, weight, None, *rest), outputs=(plain,))
        self.nodes += [
            convolution,
            _node(node, aten.view.default, (bias, list(shape)), column),
            _node(node, aten.add.Tensor, (plain, column), made),
        ]

    def add_backward(self, node: Node) -> None:
        """The gradients of a convolution but for its bias's, and that one as a sum."""
        upstream, *between, wanted = node.args
        image, weight, bias = node.outputs
        assert bias is not None
        if image is not None or weight is not None:
            others = [bool(wanted[0]), bool(wanted[1]), False]
            self.nodes.append(
                replace(node, args=(upstream, *between, others), outputs=(image, weight, None))
            )
        dims = [dim for dim in range(len(type_of(upstream).shape)) if dim != 1]
        self.nodes.append(_node(node, aten.sum.dim_IntList, (upstream, dims), bias))

    def _new(self, kind: TensorType) -> Value:
        return Value(next(self._numbers), replace(kind, requires_grad=False))


def _node(near: Node, op: torch._ops.OpOverload, args: tuple[object, ...], made: Value) -> Node:
    return Node(op, args, (), (made,), near.origin, near.grad_enabled)


def _is_pointwise(op: torch._ops.OpOverload) -> bool:
    return torch.Tag.pointwise in op.tags
