"""Chooses what the forward keeps for the backward: the cheapest cut between the two.

    %1 = mm(%0, %w)                forward:   %1 = mm(%0, %w)         saves %0, %w, %1
    %2 = add(%1, 1)          ->               %2 = add(%1, 1)
    %3 = relu(%2)                             %3 = relu(%2)
    grad of relu needs %3          backward:  %2 = add(%1, 1); %3 = relu(%2); ...

Every value that the backward reads is saved, or computed again from values that are (Griewank's
trade; solved as a minimum cut, weights in bytes). What is saved never includes more of what the
program can see (inputs, results) than eager autograd saves: so nobody's later write in place
becomes an error that eager does not raise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import final

from braze.autograd.backward import backward_graph
from braze.autograd.flow import UNLIMITED, Network
from braze.autograd.prices import Price, is_view, price_of
from braze.autograd.split import left_in_inputs, split
from braze.ir.graphs.graph import Node, Value, operands
from braze.ir.graphs.joint_graph import ForwardBackward, JointGraph
from braze.ir.types import TensorType
from braze.shapes.expr import IntLike, constant_value, symbols
from braze.shapes.substitution import substitute

# Stands for a size that was never seen.
_TYPICAL_SIZE = 64


def partition(joint: JointGraph, memory_budget: float = 1.0) -> ForwardBackward:
    """The joint graph as a forward and a backward graph.

    memory_budget: 1: only what is computed again for next to nothing is not saved; 0: everything
    but products, convolutions and random numbers is computed again; between: as many bytes as
    that part of the way.
    """
    needs = _Needs(joint)
    saved = needs.choose(memory_budget)
    return split(joint, saved, backward_graph(joint, saved))


# --- private ---------------------------------------------------------------------------------


@final
@dataclass(slots=True)
class _Needs:
    """What the backward reads of the forward, and who makes it.

    root: of a value that is a view, what it views in the end.
    read: roots that backward nodes read, but for captured data, which every graph has; visible:
        what the program can see.
    in_memory: values that some forward reader, or the program, wants in memory anyway.
    """

    joint: JointGraph
    makers: dict[Value, Node] = field(default_factory=dict)
    read: dict[Value, None] = field(default_factory=dict)
    visible: set[Value] = field(default_factory=set)
    in_memory: set[Value] = field(default_factory=set)
    order: dict[Value, int] = field(default_factory=dict)
    constants: set[Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        graph = self.joint.forward
        for number, node in enumerate(graph.nodes):
            for value in node.outputs:
                if value is not None:
                    self.makers[value] = node
                    self.order[value] = number
        self.constants = {constant.value for constant in graph.constants}
        forward = {*graph.inputs, *self.makers}
        backward = (value for node in self.joint.backward for value in operands(node))
        gradients = (g for g in self.joint.gradients if g is not None)
        for value in (*backward, *gradients):
            if value in forward and (root := self.root(value)) not in self.constants:
                self.read[root] = None
        self.visible = {*graph.inputs, *map(self.root, self.joint.results)}
        self.visible.update(left_in_inputs(self.joint))
        self.in_memory = set(self.visible)
        for node in graph.nodes:
            if price_of(node.op) >= Price.FOLD:
                self.in_memory.update(map(self.root, operands(node)))

    def root(self, value: Value) -> Value:
        """The value behind views."""
        while (node := self.makers.get(value)) is not None and is_view(node.op):
            value = node.args[0]
        return value

    def choose(self, budget: float) -> list[Value]:
        """The values to save, in the order in which the forward makes them."""
        least_saving = self._cut(self._lenient(0.0))
        if budget < 1:
            target = self._bytes_within(least_saving, budget)
            low, high = 0.0, 1.0
            for _ in range(7):
                middle = (low + high) / 2
                found = self._cut(self._lenient(middle))
                if self._bytes(found) > target:
                    low = middle
                else:
                    high = middle
            least_saving = self._cut(self._lenient(high))
        return sorted(least_saving, key=lambda v: (self.order.get(v, -1), v.index))

    def _bytes_within(self, most: Iterable[Value], budget: float) -> float:
        fewest = self._bytes(self._cut(self._lenient(1.0)))
        return fewest + budget * (self._bytes(most) - fewest)

    def _bytes(self, values: Iterable[Value]) -> int:
        inputs = set(self.joint.forward.inputs)
        return sum(_size(value) for value in values if value not in inputs)

    def _lenient(self, share: float) -> Callable[[Value], bool]:
        """Whether a value may be computed again. share: how far to go, from cheap values that
        nobody wants in memory (0) to all that is not forbidden (1)."""
        stages = (
            lambda price, stored: price <= Price.CHEAP and not stored,
            lambda price, stored: price <= Price.CHEAP,
            lambda price, stored: price <= Price.HEAVY,
            lambda price, stored: price <= Price.FOLD,
        )
        position = share * (len(stages) - 1)
        stage = min(int(position), len(stages) - 2)
        nodes = (position - stage) * len(self.joint.forward.nodes)

        def allowed(value: Value) -> bool:
            node = self.makers[value]
            price, stored = price_of(node.op), value in self.in_memory
            if price is Price.FREE and not (stored and _is_copy(node)):
                return True
            ahead = self.order[value] < nodes
            return stages[stage + ahead](price, stored)

        return allowed

    def _cut(self, may_repeat: Callable[[Value], bool]) -> set[Value]:
        """The values of the cheapest cut. Each value is an edge as wide as it is long; what may
        not be computed again hangs on the source."""
        network = Network()
        ends: dict[Value, tuple[int, int]] = {}
        pending = list(self.read)

        def edge(value: Value) -> tuple[int, int]:
            if value not in ends:
                ends[value] = network.add_point(), network.add_point()
                network.connect(*ends[value], self._weight(value))
                pending.append(value)
            return ends[value]

        for value in self.read:
            network.connect(edge(value)[1], 1, UNLIMITED)
        done: set[Value] = set()
        while pending:
            value = pending.pop()
            if value in done:
                continue
            done.add(value)
            begin = edge(value)[0]
            if value not in self.makers or not may_repeat(value):
                network.connect(0, begin, UNLIMITED)
                continue
            for operand in operands(self.makers[value]):
                root = self.root(operand)
                if root not in self.constants:
                    network.connect(edge(root)[1], begin, UNLIMITED)
        beyond = network.beyond_cut()
        return {v for v, (begin, end) in ends.items() if begin not in beyond and end in beyond}

    def _weight(self, value: Value) -> int:
        """How dear saving is. Inputs are there anyway; what is in memory anyway is not stored for
        the backward alone."""
        if value in self.visible and value not in self.read:
            return UNLIMITED
        if value not in self.makers:
            return 1
        size = _size(value) + 1
        return size if value in self.in_memory else 2 * size


def _is_copy(node: Node) -> bool:
    return any(operands(node)) and not is_view(node.op)


def _size(value: Value) -> int:
    """Bytes, at the sizes at hand for symbolic ones."""
    kind = value.type
    assert isinstance(kind, TensorType)
    sizes = [_at_hand(size) for size, stride in zip(kind.shape, kind.stride) if stride != 0]
    return math.prod(sizes) * kind.dtype.itemsize


def _at_hand(size: IntLike) -> int:
    if type(size) is int:
        return size
    hints = {s: _TYPICAL_SIZE if s.hint is None else s.hint for s in symbols(size)}
    found = constant_value(substitute(size, hints))
    assert found is not None, size
    return found
