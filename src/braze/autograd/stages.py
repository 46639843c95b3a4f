"""Splits a backward graph into stages, each with the gradients of one group of inputs.

    backward:  %3 = mm(%g, %x2)      gradient of w2        stage 0:  %3 = mm(%g, %x2)
               %4 = mm(%g, %w2)                      ->              %4 = mm(%g, %w2)    -> stage 1
               %5 = mm(%4, %x1)      gradient of w1        stage 1:  %5 = mm(%4, %x1)

A stage holds what its gradients depend on and no stage before it computes, and whatever reads its
parameters: behind the stage nobody reads them, so that a hook on a gradient may step the optimizer.
A gradient that shares memory with what a later stage reads is copied, since hooks may write to it.

Left whole: a backward that draws random numbers, has other effects, or computes sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from braze.autograd.prices import is_view
from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import Graph, Node, Output, Value, computed_symbol, operands
from braze.ir.graphs.graph_sizes import told_sizes
from braze.ir.graphs.joint_graph import Backward, BackwardStage, ForwardBackward, SavedInput
from braze.ir.graphs.op_effects import has_effects
from braze.ir.types import TensorType
from braze.tracing.shape_rules.strides import contiguous_stride


def divide_backward(
    backward: Backward, pair: ForwardBackward, groups: Sequence[Sequence[int]]
) -> tuple[BackwardStage, ...]:
    """The stages, one a group; none where the backward is left whole.

    groups: inputs of the forward graph by their numbers, in the order in which their gradients are
    wanted; each input that has a gradient is in one group.
    """
    nodes = backward.graph.nodes
    if any(has_effects(node.op) or computed_symbol(node) is not None for node in nodes):
        return ()
    return _Division(backward, pair, groups).stages()


# --- private ---------------------------------------------------------------------------------


@final
class _Division:
    """One backward on its way to being several."""

    def __init__(
        self, backward: Backward, pair: ForwardBackward, groups: Sequence[Sequence[int]]
    ) -> None:
        self.graph = graph = backward.graph
        self.makers = {
            value: number
            for number, node in enumerate(graph.nodes)
            for value in node.outputs
            if value is not None
        }
        self.groups = groups
        self.gradients = [
            [
                None if place is None else graph.outputs[place].value
                for place in [backward.gradients[number] for number in group]
            ]
            for group in groups
        ]
        group_of = {number: k for k, group in enumerate(groups) for number in group}
        self.read_until = {
            value: group_of[saved.index]
            for saved, value in zip(pair.saved, graph.inputs)
            if isinstance(saved, SavedInput) and saved.index in group_of
        }
        made = (value.index for value in (*graph.inputs, *self.makers))
        constants = (constant.value.index for constant in graph.constants)
        self.fresh = itertools.count(1 + max(*made, *constants, 0, 0))

    def stages(self) -> tuple[BackwardStage, ...]:
        """The graphs, and how values get from one to the other."""
        places = {value: place for place, value in enumerate(self.graph.inputs)}
        parts = self._assigned()
        made: list[BackwardStage] = []
        for k, part in enumerate(parts):
            later = self._used_in(parts[k + 1 :], k + 1)
            made.append(self._stage(k, part, later, places))
        return tuple(made)

    def _assigned(self) -> list[list[Node]]:
        """The nodes of each stage, in their order."""
        wanted: list[list[int]] = [[] for _ in self.groups]
        for k, gradients in enumerate(self.gradients):
            wanted[k] += [self.makers[g] for g in gradients if g is not None and g in self.makers]
        for number, node in enumerate(self.graph.nodes):
            if is_view(node.op):
                continue
            readers = [self.read_until.get(self._root(value)) for value in operands(node)]
            known = [k for k in readers if k is not None]
            if known:
                wanted[min(known)].append(number)
        done: set[int] = set()
        parts = []
        for pending in wanted:
            own: set[int] = set()
            while pending:
                number = pending.pop()
                if number in done or number in own:
                    continue
                own.add(number)
                read = operands(self.graph.nodes[number])
                pending += [self.makers[value] for value in read if value in self.makers]
            done |= own
            parts.append([self.graph.nodes[number] for number in sorted(own)])
        return parts

    def _root(self, value: Value) -> Value:
        """The value behind views."""
        while (number := self.makers.get(value)) is not None:
            node = self.graph.nodes[number]
            if not is_view(node.op):
                return value
            value = node.args[0]
        return value

    def _used_in(self, parts: Sequence[Sequence[Node]], first: int) -> dict[Value, None]:
        """What later stages read, or give."""
        used = dict.fromkeys(v for part in parts for node in part for v in operands(node))
        given = (g for gradients in self.gradients[first:] for g in gradients if g is not None)
        return used | dict.fromkeys(given)

    def _stage(
        self, k: int, part: Sequence[Node], later: Mapping[Value, None], places: dict[Value, int]
    ) -> BackwardStage:
        """One stage. places: where what the stages before it are given or have made is held; what
        this one hands on is added."""
        nodes, results = list(part), self._apart(k, later)
        nodes += [node for node, _ in results.values() if node is not None]
        gradients = [g and results[g][1] for g in self.gradients[k]]
        inside = {v for node in part for v in node.outputs if v is not None}
        outputs = dict.fromkeys(g for g in gradients if g is not None)
        outputs |= dict.fromkeys(value for value in later if value in inside)
        used = dict.fromkeys(v for node in nodes for v in operands(node)) | outputs
        taken = [value for value in used if value in places and value not in inside]
        graph = Graph(
            inputs=tuple(taken),
            constants=tuple(c for c in self.graph.constants if c.value in used),
            nodes=tuple(nodes),
            outputs=tuple(map(Output, outputs)),
            mutations=(),
        )
        graph = replace(graph, sizes=told_sizes(graph, self.graph.sizes.derived))
        takes = tuple([places[value] for value in taken])
        numbers = {value: number for number, value in enumerate(outputs)}
        handed_on = [value for value in later if value in inside]
        for value in handed_on:
            places[value] = len(places)
        return BackwardStage(
            graph,
            takes,
            tuple([None if g is None else numbers[g] for g in gradients]),
            tuple([(numbers[value], places[value]) for value in handed_on]),
        )

    def _apart(self, k: int, later: Iterable[Value]) -> dict[Value, tuple[Node | None, Value]]:
        """The gradients of a stage: what copies each, and the copy; itself where it shares no
        memory with what is used later."""
        shared = set(map(self._root, later))
        found: dict[Value, tuple[Node | None, Value]] = {}
        for gradient in self.gradients[k]:
            if gradient is None or gradient in found:
                continue
            if self._root(gradient) not in shared:
                found[gradient] = None, gradient
                continue
            kind = gradient.type
            assert isinstance(kind, TensorType)
            copy = Value(next(self.fresh), replace(kind, stride=contiguous_stride(kind.shape)))
            kwargs = (("memory_format", torch.contiguous_format),)
            node = Node(aten.clone.default, (gradient,), kwargs, (copy,), grad_enabled=False)
            found[gradient] = node, copy
        return found
