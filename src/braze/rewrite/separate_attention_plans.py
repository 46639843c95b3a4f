"""Gives cuDNN attention of compiled graphs plans of its own, apart from eager's.

    %9, ... = _scaled_dot_product_cudnn_attention_backward(%5, ..., 0.0, False)
->
    %6 = permute(%5, [0, 2, 1, 3])               # %5 is laid out as the attention's result
    %7 = clone(%6)
    %8 = permute(%7, [0, 2, 1, 3])
    %9, ... = _scaled_dot_product_cudnn_attention_backward(%8, ..., -0.0, False)

PyTorch keeps one plan of cuDNN's for each layout of query, keys, values and mask. The strides of
the incoming gradient are part of a plan, and not of what it is found by (`MHA.cpp`, since cuDNN
9.5.1): a second call with a gradient in another layout runs by the plan of the first, and all three
gradients are wrong, in eager, too. So every gradient gets the layout of the result, which follows
from the query's. Plans that eager calls left behind are out of the way, since plans are found by
the bits of the dropout's probability, too: minus zero has others than zero, and is none either.

A gradient that is shifted in memory, or a probability that is not zero, is as in eager.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import Graph, Node, Value
from braze.ir.types import Size, TensorType
from braze.rewrite.editing import at_hand, fresh_numbers, row_major, type_of
from braze.shapes.expr import as_expr, constant_value

_BACKWARD = aten._scaled_dot_product_cudnn_attention_backward.default
_GRADIENT, _RESULT, _DROPOUT = 0, 4, 13


def separate_attention_plans(graph: Graph) -> Graph:
    """The graph with gradients of cuDNN's attention by plans that are made for them."""
    if not any(node.op is _BACKWARD for node in graph.nodes):
        return graph
    numbers = fresh_numbers(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op is _BACKWARD:
            copies, gradient = _as_result(node, numbers)
            nodes += copies
            args = list(node.args)
            args[_GRADIENT] = gradient
            args[_DROPOUT] = -0.0 if args[_DROPOUT] == 0 else args[_DROPOUT]
            node = replace(node, args=tuple(args))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


# --- private -------------------------------------------------------------------------------------


def _as_result(node: Node, numbers: Iterator[int]) -> tuple[list[Node], Value]:
    """The gradient that comes in, laid out as the result is, and what copies it, if anything."""
    gradient, like = node.args[_GRADIENT], type_of(node.args[_RESULT])
    kind = type_of(gradient)
    if _is_laid_out(kind, like):
        return [], gradient
    order = sorted(range(len(like.stride)), key=lambda dim: -at_hand(like.stride[dim]))
    back = [order.index(dim) for dim in range(len(order))]
    turned = _permuted(kind, order)
    dense = replace(turned, stride=row_major(turned.shape))
    copies: list[Node] = []
    value = gradient
    for op, more, kwargs, made in (
        (aten.permute.default, (order,), (), turned),
        (aten.clone.default, (), (("memory_format", torch.contiguous_format),), dense),
        (aten.permute.default, (back,), (), _permuted(dense, back)),
    ):
        outputs = (Value(next(numbers), made),)
        copies.append(Node(op, (value, *more), kwargs, outputs, node.origin, node.grad_enabled))
        (value,) = outputs
    return copies, value


def _is_laid_out(kind: TensorType, like: TensorType) -> bool:
    """Whether both are laid out alike, but for dimensions of size one."""
    return all(
        constant_value(size) == 1 or as_expr(a) == as_expr(b)
        for size, a, b in zip(kind.shape, kind.stride, like.stride, strict=True)
    )


def _permuted(kind: TensorType, order: Sequence[int]) -> TensorType:
    def picked(sizes: Sequence[Size]) -> tuple[Size, ...]:
        return tuple([sizes[dim] for dim in order])

    return replace(kind, shape=picked(kind.shape), stride=picked(kind.stride))
