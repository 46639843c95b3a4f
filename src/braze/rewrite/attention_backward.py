"""Finds the backward of attention in a graph that holds both, as a whole training step does.

    %4 = _softmax(%3, -1)              forward: %0 @ %1, scaled, _softmax, @ %5
    %6 = bmm(%4, %5)
    ...                           ->   tangent %7 of %6
    %8 = bmm(transpose(%4), %7)        gradients: %8 of %5, ...
    %9 = bmm(%7, transpose(%5))
    ...

What to look for is asked of PyTorch's engine: it runs the backward of the forward's own nodes
once more, on fake tensors, and each operator that it calls is looked up in the graph. The softmax's
backward is the anchor, since it reads the probabilities; what leads to it ends at the gradient that
comes in.

Refused: anything inside, of the forward or of the backward, that somebody else reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import torch

from braze.compat.torch.aten import aten
from braze.compat.torch.autograd_engine import gradients, plain_autograd
from braze.frozen import frozen
from braze.ir.graphs.graph import Graph, Node, Value, first_result, operands
from braze.ir.graphs.run_graph import call_node
from braze.ir.types import TensorType, known_sizes
from braze.rewrite.attention_pattern import Attention
from braze.rewrite.editing import readers_of, seen_values, type_of
from braze.tracing import DataDependent, Tracer, UnknownTensor, Untraceable
from braze.tracing.fake_tensor import apart
from braze.tracing.graph_recorder import node_of

_SAME = frozenset({aten.detach.default, aten.alias.default})
_SOFTMAX_BACKWARD = aten._softmax_backward_data.default


@final
@frozen(eq=False)
class AttentionBackward:
    """tangent: the gradient of the product's result; gradients: of its query, keys and values,
    where they are computed. nodes: those that go with the forward; first: the first that is behind
    the tangent."""

    tangent: Value
    gradients: tuple[Value | None, ...]
    nodes: frozenset[Node]
    first: Node


def find_backward(graph: Graph, attention: Attention) -> AttentionBackward | str:
    """The backward of attention of which others read what is inside; a text: they are none."""
    if len({attention.query, attention.keys, attention.values}) < 3:
        return "its operands are one, and so is their gradient"
    made = [
        type_of(value) for node in attention.nodes for value in (*operands(node), node.outputs[0])
    ]
    if any(known_sizes((*kind.shape, *kind.stride)) is None for kind in made):
        return "its backward is in the graph, and sizes are symbols"
    expected = _expected(attention)
    if isinstance(expected, str):
        return expected
    return _BackwardMatch(graph, attention, expected).backward()


# --- private -------------------------------------------------------------------------------------

_ELSEWHERE = "its probabilities or scores are read elsewhere"


@final
@frozen(eq=False)
class _Expected:
    """A backward as the engine runs it. same: values of the trace that are the graph's."""

    nodes: tuple[Node, ...]
    same: Mapping[Value, Value]
    tangent: Value
    gradients: tuple[Value | None, ...]


def _expected(attention: Attention) -> _Expected | str:
    """The backward of the nodes that attention is made of."""
    inside = {value for node in attention.nodes for value in node.outputs}
    read = [value for node in attention.nodes for value in operands(node)]
    inputs = [value for value in dict.fromkeys(read) if value not in inside]
    wanted = (attention.query, attention.keys, attention.values)
    tracer = Tracer(replayable=False)
    try:
        with plain_autograd(apart), tracer:
            return _traced(tracer, attention, inputs, wanted)
    except (DataDependent, UnknownTensor, Untraceable, NotImplementedError, RuntimeError) as error:
        return f"its backward cannot be traced: {error}"


def _traced(
    tracer: Tracer, attention: Attention, inputs: Sequence[Value], wanted: Sequence[Value]
) -> _Expected:
    made: dict[Value, Any] = {}
    for value in inputs:
        kind = type_of(value)
        kind = TensorType(kind.dtype, kind.shape, kind.stride, kind.device, value in wanted)
        made[value] = tracer.add_input_of_type(kind)
    for node in attention.nodes:
        (made[first_result(node)],) = _tensors(call_node(node, made))
    result = made[attention.result]
    start = len(tracer.recorder.calls)
    kind = type_of(attention.result)
    plain = TensorType(kind.dtype, kind.shape, kind.stride, kind.device)
    tangent = tracer.add_input_of_type(plain)
    found = gradients([result], [tangent], [made[value] for value in wanted])
    same = {tracer.value_of(fake): value for value, fake in made.items()}
    nodes = tuple(map(node_of, tracer.recorder.calls))
    for node in nodes[:start]:  # what autograd saved is detached
        if node.op in _SAME and node.args[0] in same:
            same[first_result(node)] = same[node.args[0]]
    with torch.no_grad():
        values = tuple([None if one is None else tracer.value_of(one) for one in found])
    return _Expected(nodes[start:], same, tracer.value_of(tangent), values)


def _tensors(result: object) -> Sequence[object]:
    return result if isinstance(result, (list, tuple)) else (result,)


@final
class _BackwardMatch:
    """Looks one backward up. bound: values of the trace -> the graph's."""

    def __init__(self, graph: Graph, attention: Attention, expected: _Expected) -> None:
        self._graph, self._attention, self._expected = graph, attention, expected
        self._makers = {v: node for node in graph.nodes for v in node.outputs if v is not None}
        self._readers = readers_of(graph)
        self._made_by = {v: n for n in expected.nodes for v in n.outputs if v is not None}
        self._bound: dict[Value, Value] = dict(expected.same)
        self._found: dict[Node, Node] = {}

    def backward(self) -> AttentionBackward | str:
        """What was found; a text: why it is none."""
        if not self._anchor():
            return _ELSEWHERE
        for node in self._expected.nodes:
            self._look_up(node)
        tangent = self._bound.get(self._expected.tangent)
        if tangent is None:
            return _ELSEWHERE
        found = [None if g is None else self._bound.get(g) for g in self._expected.gradients]
        gone = self._inside()
        if not any(found) or not self._is_closed(gone, [g for g in found if g is not None]):
            return _ELSEWHERE
        places = {node: number for number, node in enumerate(self._graph.nodes)}
        after = max(places[node] for node in self._attention.nodes)
        if tangent in self._makers:
            after = max(after, places[self._makers[tangent]])
        first = min(places[node] for node in gone if places[node] > after)
        return AttentionBackward(tangent, tuple(found), frozenset(gone), self._graph.nodes[first])

    def _anchor(self) -> bool:
        """Bind what leads to the softmax's backward."""
        (wanted,) = [node for node in self._expected.nodes if node.op is _SOFTMAX_BACKWARD]
        candidates = [
            node
            for value in self._alike(self._attention.softmax.outputs[0])
            for node in self._readers.get(value, ())
            if node.op is _SOFTMAX_BACKWARD
        ]
        return len(candidates) == 1 and self._unify(wanted, candidates[0])

    def _look_up(self, node: Node) -> None:
        """Bind a node whose operands are bound, if the graph has it."""
        if node in self._found or node.op in _SAME:
            return
        known = [self._bound[v] for v in map(self._plain, operands(node)) if v in self._bound]
        for value in (like for one in known for like in self._alike(one)):
            for candidate in self._readers.get(value, ()):
                if candidate.op is node.op and self._unify(node, candidate):
                    return

    def _unify(self, node: Node, candidate: Node) -> bool:
        """Bind the results of a node to those of another that computes the same; else nothing."""
        before, found = dict(self._bound), dict(self._found)
        same = node.op is candidate.op and len(node.outputs) == len(candidate.outputs)
        pairs = ((node.args, candidate.args), (node.kwargs, candidate.kwargs))
        if same and all(self._matches(a, b) for a, b in pairs):
            for mine, other in zip(node.outputs, candidate.outputs, strict=True):
                if mine is not None and other is not None:
                    self._bound[mine] = other
            self._found[node] = candidate
            return True
        self._bound, self._found = before, found
        return False

    def _matches(self, mine: Any, other: Any) -> bool:
        if isinstance(mine, Value):
            return isinstance(other, Value) and self._is_value(self._plain(mine), other)
        if isinstance(mine, (list, tuple)):
            alike = isinstance(other, (list, tuple)) and len(mine) == len(other)
            return alike and all(map(self._matches, mine, other))
        return bool(mine == other)

    def _is_value(self, mine: Value, other: Value) -> bool:
        bound = self._bound.get(mine)
        if bound is not None:
            return other in self._alike(bound) or bound in self._alike(other)
        if mine is self._expected.tangent:
            self._bound[mine] = other
            return True
        maker, candidate = self._made_by.get(mine), self._makers.get(self._origin_of(other))
        return maker is not None and candidate is not None and self._unify(maker, candidate)

    def _plain(self, value: Value) -> Value:
        """What a value of the trace is a detached copy of."""
        while value in self._made_by and self._made_by[value].op in _SAME:
            value = self._made_by[value].args[0]
        return value

    def _origin_of(self, value: Value) -> Value:
        while value in self._makers and self._makers[value].op in _SAME:
            value = self._makers[value].args[0]
        return value

    def _alike(self, value: Value | None) -> list[Value]:
        """The value, what it is detached from, and what is detached from those."""
        if value is None:
            return []
        found = [self._origin_of(value)]
        for one in found:
            found += [
                made
                for node in self._readers.get(one, ())
                if node.op in _SAME
                for made in node.outputs
                if made is not None
            ]
        return found

    # --- what goes ------------------------------------------------------------------------------

    def _inside(self) -> set[Node]:
        """The nodes that go: those of the forward, and what was found that is made of them."""
        gone = set(self._attention.nodes)
        values = {value for node in gone for value in node.outputs} - {self._attention.result}
        matched = set(self._found.values())
        for node in self._graph.nodes:
            is_one = node in matched or node.op in _SAME
            if is_one and any(value in values for value in operands(node)):
                gone.add(node)
                values.update(node.outputs)
        return gone

    def _is_closed(self, gone: set[Node], kept: Iterable[Value]) -> bool:
        """Whether nobody else reads what the nodes make, but for the values that are kept."""
        kept = {*kept, self._attention.result}
        seen = seen_values(self._graph)
        made = {v for node in gone for v in node.outputs if v is not None and v not in kept}
        return not (made & seen) and all(
            node in gone for value in made for node in self._readers.get(value, ())
        )
