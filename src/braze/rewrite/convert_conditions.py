"""If-conversion: small branches are both computed, and one is selected.

    %3 = region<cond>([%p, %0], [])               %4 = sin(%0)
        graph { %1 = sin(%0); output %1 }    ->   %5 = cos(%0)
        graph { %2 = cos(%0); output %2 }         %3 = where(%p, %4, %5)

A region costs a call, and on a GPU the host waits for the predicate; two small branches in one
kernel cost less. Nothing of the branch that is not taken is seen: it only computes, element by
element, and gradients are selected, too, since the backward of a region is a region.

Left alone: branches with other operators than pointwise ones, or whose elements are too many, and
operators that raise for what tensors hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import Constant, Graph, Node, Value, replace_in
from braze.ir.graphs.region import RegionKind, is_region
from braze.ir.types import TensorType
from braze.rewrite.editing import at_hand, fresh_numbers, is_view, present
from braze.shapes.expr import Expr, Symbol, as_expr, symbols
from braze.shapes.substitution import substitute
from braze.tracing.symbolic.size_rewriter import SizeRewriter
from braze.tracing.unread_errors import raises_for_data

# Elements that may be computed for nothing: 10 microseconds of one core's, and on a device those of
# a host that waits for it and starts a kernel more.
_ELEMENTS = {"cpu": 1 << 13}
_ELEMENTS_ON_DEVICE = 1 << 20
_MAY_DIVIDE = frozenset("div floor_divide remainder fmod pow".split())
_FILLS = frozenset("zeros ones full clone _to_copy zeros_like ones_like full_like".split())


def convert_conditions(graph: Graph) -> Graph:
    """The graph with small branches in it."""
    if not any(map(_is_small, graph.nodes)):
        return graph
    numbers, nodes, constants = fresh_numbers(graph), list[Node](), list[Constant]()
    for node in graph.nodes:
        if not _is_small(node):
            nodes.append(node)
            continue
        op: Any = node.op
        operands, sizes = node.args
        predicate = operands[0]
        sides = []
        for each in op.graphs:
            made = _inlined(each, operands[1:], sizes, numbers, node)
            nodes += made.nodes
            constants += made.constants
            sides.append([output.value for output in made.outputs])
        for result, *pair in zip(node.outputs, *sides, strict=True):
            selected = (predicate, *pair)
            nodes.append(replace(node, op=aten.where.self, args=selected, outputs=(result,)))
    return replace(graph, nodes=tuple(nodes), constants=(*graph.constants, *constants))


# --- private ---------------------------------------------------------------------------------


def _is_small(node: Node) -> bool:
    if not is_region(node):
        return False
    op: Any = node.op
    if op.kind is not RegionKind.COND or not all(map(_has_plain_sizes, op.graphs)):
        return False
    inside = [inner for each in op.graphs for inner in each.nodes]
    return all(map(_is_harmless, inside)) and _fits(inside)


def _has_plain_sizes(graph: Graph) -> bool:
    return not graph.sizes.derived and not graph.sizes.checks


def _is_harmless(node: Node) -> bool:
    """Whether computing a node for nothing does nothing."""
    if is_region(node) or node.op.namespace != "aten" or raises_for_data(node.op):
        return False
    name = node.op._schema.name.partition("::")[2]
    kinds = [value.type for value in node.outputs if value is not None]
    if name in _MAY_DIVIDE and not all(_is_float(kind) for kind in kinds):
        return False
    return is_view(node.op) or name in _FILLS or torch.Tag.pointwise in node.op.tags


def _is_float(kind: object) -> bool:
    return isinstance(kind, TensorType) and kind.dtype.is_floating_point


def _fits(nodes: Sequence[Node]) -> bool:
    elements, most = 0, _ELEMENTS_ON_DEVICE
    for node in nodes:
        for value in node.outputs:
            if value is not None and isinstance(value.type, TensorType):
                most = min(most, _ELEMENTS.get(value.type.device.type, _ELEMENTS_ON_DEVICE))
                if not is_view(node.op):
                    elements += math.prod(map(at_hand, value.type.shape))
    return elements <= most


def _inlined(
    graph: Graph, operands: Sequence[Value], sizes: Sequence[Any], numbers: Iterator[int], at: Node
) -> Graph:
    """A branch in the values and symbols of the graph around it."""
    told: dict[Symbol, Expr] = {}
    for number, size in zip(graph.sizes.numbers, sizes, strict=True):
        (symbol,) = symbols(number)
        told[symbol] = as_expr(size)

    def known(size: object) -> Any:
        return substitute(size, told) if type(size) is Expr else size

    types = SizeRewriter(known)
    new = dict(zip(graph.inputs, operands, strict=True))
    constants, nodes = [], []
    for constant in graph.constants:
        new[constant.value] = Value(next(numbers), constant.value.type)
        constants.append(replace(constant, value=new[constant.value]))
    for node in graph.nodes:
        made = [Value(next(numbers), types.type(v.type)) for v in present(node.outputs)]
        args = replace_in(_in_symbols(node.args, known), new)
        kwargs = tuple([(n, replace_in(_in_symbols(v, known), new)) for n, v in node.kwargs])
        new.update(zip(present(node.outputs), made, strict=True))
        results = tuple([None if value is None else new[value] for value in node.outputs])
        node = replace(node, args=args, kwargs=kwargs, outputs=results)
        nodes.append(replace(node, grad_enabled=at.grad_enabled))
    outputs = tuple([replace(output, value=new[output.value]) for output in graph.outputs])
    return Graph((), tuple(constants), tuple(nodes), outputs, ())


def _in_symbols(argument: object, known: Callable[[object], object]) -> Any:
    """An argument with its sizes in other symbols."""
    if isinstance(argument, (tuple, list)):
        return type(argument)([_in_symbols(item, known) for item in argument])
    return known(argument)
