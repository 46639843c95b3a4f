"""Bytes that a call of a graph holds at most where its operators run one behind the other, each
value until it was read for the last time: what eager takes. Inputs and constants are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from typing import TypeVar

from braze.ir.graphs.graph import Graph, Node, Value, operands, values_in
from braze.ir.types import TensorType
from braze.shapes.expr import constant_value

_Held = TypeVar("_Held")


def peak_of_graph(graph: Graph) -> int:
    """Bytes at most. A value whose sizes are symbols counts nothing."""
    owners: dict[Value, Value] = {}  # of values that are views
    steps: list[set[Value]] = []
    given = {*graph.inputs, *(constant.value for constant in graph.constants)}
    for node in graph.nodes:
        if (base := _viewed(node)) is not None:
            base = owners.get(base, base)
            owners.update((v, base) for v in node.outputs if v is not None)
        touched = {owners.get(v, v) for v in (*operands(node), *node.outputs) if v is not None}
        steps.append(touched - given)
    kept = {owners.get(output.value, output.value) for output in graph.outputs}
    return peak(steps, kept, bytes_of_value)


def bytes_of_value(value: Value) -> int:
    """Bytes of a value's elements; 0 where it is no tensor, or its sizes are not known."""
    kind = value.type
    if not isinstance(kind, TensorType):
        return 0
    return math.prod([constant_value(n) or 0 for n in kind.shape]) * kind.dtype.itemsize


def has_known_sizes(value: Value) -> bool:
    """Whether no size of a value is a symbol."""
    kind = value.type
    return not isinstance(kind, TensorType) or None not in map(constant_value, kind.shape)


def peak(steps: Sequence[Set[_Held]], kept: Set[_Held], size: Callable[[_Held], int]) -> int:
    """Bytes at most of what lives from the first to the last of the steps that touch it. kept:
    what lives to the end."""
    last = {each: number for number, touched in enumerate(steps) for each in touched}
    live: set[_Held] = set()
    held = most = 0
    for number, touched in enumerate(steps):
        new = touched - live
        live |= new
        held += sum(map(size, new))
        most = max(most, held)
        held -= sum(size(each) for each in touched if last[each] == number and each not in kept)
    return most


# --- private ---------------------------------------------------------------------------------


def _viewed(node: Node) -> Value | None:
    """The value that a node's results are views of."""
    returned = getattr(node.op, "_schema", None)
    if returned is None or not any(
        r.alias_info is not None and not r.alias_info.is_write for r in returned.returns
    ):
        return None
    return next(iter(values_in(node.args)), None)
