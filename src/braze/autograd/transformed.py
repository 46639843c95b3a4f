"""Graphs of what transforms of torch.func make of a graph: PyTorch's own rules on fake tensors.

    graph { input %0: f32[3]           graph { input %0: f32[5, 3]
      %1 = sum(%0)               ->      %1 = sum(%0, [1])
      output %1 }                        output %1 }                    # `batched_graph`, of 5

Results are contiguous and in memory of their own. Left alone, by an exception: operators that have
no rule, or whose rule asks for data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar, final

import torch

from braze.autograd.joint import NotDifferentiable, trace_joint
from braze.autograd.partition import partition
from braze.autograd.region_gradient import asking, dense, gradient_graph
from braze.compat.torch.aten import aten
from braze.compat.torch.dispatcher import WithoutModes
from braze.compat.torch.functorch import WithoutTransforms, tangents_of
from braze.compat.torch.thread_state import run_isolated
from braze.errors import CannotTransform
from braze.frozen import frozen
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.graphs.graph import Graph, Node, Output, Value, operands
from braze.ir.graphs.joint_graph import SavedOutput
from braze.ir.graphs.run_graph import call_node, flat_tensors
from braze.ir.origin import UNKNOWN
from braze.ir.types import TensorType
from braze.tracing import DataDependent, Tracer, UnknownTensor, Untraceable
from braze.tracing.regions import makes_own, record_region

_Made = TypeVar("_Made")
_Function: TypeAlias = Callable[..., tuple[Any, ...]]


def batched_graph(graph: Graph, batched: Sequence[bool], size: int, randomness: str) -> Graph:
    """The graph for a whole batch: inputs that are batched, and all results, have a dimension of
    `size` rows in front. Raises NotDifferentiable."""
    kinds = []
    for value, is_batched in zip(graph.inputs, batched, strict=True):
        kind = _plain(value)
        if is_batched:
            rows = max([1, *[n * step for n, step in zip(kind.shape, kind.stride) if n]])
            shape, stride = (size, *kind.shape), (rows, *kind.stride)
            kind = TensorType(kind.dtype, shape, stride, kind.device)
        kinds.append(kind)
    dims = tuple([0 if is_batched else None for is_batched in batched])

    def transform(run: _Function, fakes: Sequence[object]) -> Sequence[object]:
        return torch.vmap(run, dims, 0, randomness)(*fakes)

    return _retraced(graph, kinds, transform)


def tangent_graph(graph: Graph, given: Sequence[bool]) -> Graph:
    """The graph from its inputs, and the tangents of those for which one is given, to the tangents
    of its results that are floating or complex. Raises NotDifferentiable."""
    kinds = list(map(_plain, graph.inputs))
    count = len(kinds)
    tangents = [dense(kind) for kind, yes in zip(kinds, given, strict=True) if yes]

    def transform(run: _Function, fakes: Sequence[Any]) -> Sequence[Any]:
        primals = fakes[:count]

        def of_given(*moving: object) -> tuple[Any, ...]:
            found = iter(moving)
            inputs = [next(found) if yes else x for x, yes in zip(primals, given)]
            return tuple([made for made in run(*inputs) if _has_tangents(made.dtype)])

        moving = tuple([x for x, yes in zip(primals, given) if yes])
        return tangents_of(of_given, moving, fakes[count:])

    return _retraced(graph, [*kinds, *tangents], transform)


@final
@frozen(eq=False)
class TrainingGraphs:
    """A graph, and that of its gradients from what the first computes.

    forward: its first outputs are the graph's results; the others are saved.
    saved: where the first inputs of `backward` are found: (is an output of `forward`, number).
    tangents: results of whose gradients the other inputs are. gradients: per input of `forward`,
    the output of `backward` that is its gradient. differentiable: per result.
    """

    forward: Graph
    backward: Graph
    saved: tuple[tuple[bool, int], ...]
    tangents: tuple[int, ...]
    gradients: tuple[int | None, ...]
    differentiable: tuple[bool, ...]


def training_graphs(graph: Graph, wanted: Sequence[bool], memory_budget: float) -> TrainingGraphs:
    """The graphs for gradients of wanted inputs. Gradients of the gradients are those of the two
    graphs: `detach`es stay, and formulas have gradients. Raises NotDifferentiable."""
    with WithoutModes():
        joint = trace_joint(asking(graph, wanted), keeps_detached=True)
        pair = partition(joint, memory_budget)
    backward = pair.backward
    without = {
        value for node in joint.forward.nodes if not node.grad_enabled for value in node.outputs
    }
    nodes = [
        node if without.intersection(node.outputs) else replace(node, grad_enabled=True)
        for node in backward.graph.nodes
    ]
    flows = [output.value not in joint.constant for output in pair.forward.outputs]
    saved = tuple([(isinstance(each, SavedOutput), each.index) for each in pair.saved])
    return TrainingGraphs(
        without_copies(owned(pair.forward)),
        without_copies(owned(replace(backward.graph, nodes=tuple(nodes)))),
        saved,
        backward.tangents,
        backward.gradients,
        (*pair.is_differentiable, *flows[len(pair.is_differentiable) :]),
    )


def owned(graph: Graph) -> Graph:
    """The graph with results that are in memory of their own, each another one."""
    makers = {value: node for node in graph.nodes for value in node.outputs if value is not None}
    top = max([-1, *[v.index for v in (*graph.inputs, *makers)]])
    top = max([top, *[constant.value.index for constant in graph.constants]])
    copies, outputs = list[Node](), list[Output]()
    for output in graph.outputs:
        value, maker = output.value, makers.get(output.value)
        if maker is None or not makes_own(maker.op) or value in [o.value for o in outputs]:
            top += 1
            made = Value(top, dense(value.type))
            layout = (("memory_format", torch.contiguous_format),)
            copies.append(Node(aten.clone.default, (value,), layout, (made,)))
            value = made
        outputs.append(Output(value))
    return replace(graph, nodes=(*graph.nodes, *copies), outputs=tuple(outputs))


# Views of a whole tensor that hold the same elements.
_WHOLE = frozenset(
    (
        aten.transpose.int, aten.t.default, aten.permute.default, aten.view.default,
        aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default,
    )
)  # fmt: skip


def without_copies(graph: Graph) -> Graph:
    """The graph without copies of results that are views, where what they view has the layout of
    the copy, was made in the graph and is no other result: rules for batches transpose twice.

        %2 = bmm(...); %3 = transpose(%2); %4 = transpose(%3); %5 = clone(%4)   ->   %2 = bmm(...)
        output %5                                                                    output %2
    """
    makers = {value: node for node in graph.nodes for value in node.outputs if value is not None}
    outputs = [output.value for output in graph.outputs]
    for place, value in enumerate(outputs):
        node = makers.get(value)
        if node is None or node.op is not aten.clone.default:
            continue
        root: Any = node.args[0]
        while (maker := makers.get(root)) is not None and maker.op in _WHOLE:
            root = maker.args[0]
        if maker is not None and makes_own(maker.op) and root not in outputs:
            kind = root.type
            if isinstance(kind, TensorType) and dense(kind) == dense(value.type) == _plain(root):
                outputs[place] = root
    used, kept = set(outputs), list[Node]()
    for node in reversed(graph.nodes):
        if not used.isdisjoint(node.outputs):
            kept.append(node)
            used.update(operands(node))
    return replace(graph, nodes=tuple(kept[::-1]), outputs=tuple(map(Output, outputs)))


@final
class GraphTransforms:
    """How the graphs for calls under transforms are made and compiled; each is made in the middle
    of a call. compile: makes a graph kernels. note: is told of calls that run by eager kernels.
    memory_budget: as in `partition`."""

    def __init__(
        self,
        compile: Callable[[Graph], GraphCallable],
        note: Callable[[str], None],
        memory_budget: float,
    ) -> None:
        self.compile, self.note, self._budget = compile, note, memory_budget

    def own(self, graph: Graph) -> Graph:
        """The graph without results that are views; the others in memory of their own."""
        results = tuple([output for output in graph.outputs if output.alias is None])
        return owned(replace(graph, outputs=results))

    def train(self, graph: Graph, wanted: tuple[bool, ...]) -> TrainingGraphs:
        """`training_graphs`. Raises CannotTransform, as all of these."""
        return _isolated(lambda: training_graphs(graph, wanted, self._budget))

    def gradients(
        self, graph: Graph, wanted: tuple[bool, ...], given: tuple[bool, ...]
    ) -> tuple[Graph, tuple[int, ...]]:
        """`gradient_graph`, and the wanted inputs that have no gradient."""
        missing: list[int] = []
        made = _isolated(lambda: gradient_graph(graph, wanted, given, missing))
        return without_copies(made), tuple(missing)

    def batch(self, graph: Graph, batched: tuple[bool, ...], size: int, randomness: str) -> Graph:
        """`batched_graph`."""
        return without_copies(_isolated(lambda: batched_graph(graph, batched, size, randomness)))

    def tangents(self, graph: Graph, given: tuple[bool, ...]) -> Graph:
        """`tangent_graph`."""
        return without_copies(_isolated(lambda: tangent_graph(graph, given)))


# --- private ---------------------------------------------------------------------------------


def _isolated(make: Callable[[], _Made]) -> _Made:
    try:
        with WithoutTransforms():
            return run_isolated(make)
    except NotDifferentiable as reason:
        raise CannotTransform(str(reason)) from reason


def _retraced(
    graph: Graph,
    kinds: Sequence[TensorType],
    transform: Callable[[_Function, Sequence[Any]], Sequence[Any]],
) -> Graph:
    """The graph of `transform(run, inputs)`, where `run` runs the graph. kinds: of the inputs."""
    tracer = Tracer(replayable=False)
    with WithoutModes(), WithoutTransforms():
        fakes = [tracer.add_input_of_type(kind) for kind in kinds]
        constants = {c.value: tracer.add_constant(c.tensor) for c in graph.constants}
        try:
            with torch.enable_grad(), tracer:
                made = transform(_runner(graph, constants, tracer), fakes)
                values = list(map(tracer.value_of, made))
                types = [dense(value.type) for value in values]
                recorded = record_region(tracer.recorder, 0, values, types)
        except (DataDependent, Untraceable, UnknownTensor, RuntimeError) as error:
            raise NotDifferentiable(str(error), UNKNOWN) from error
    inputs = tuple(tracer.recorder.input_values)
    whole = recorded.graph(inputs)
    used = tuple([constant for constant in tracer.constants if constant.value in recorded.reads])
    return Graph(inputs, used, whole.nodes, whole.outputs, ())


def _runner(graph: Graph, constants: dict[Value, torch.Tensor], tracer: Tracer) -> _Function:
    def run(*inputs: object) -> tuple[object, ...]:
        values: dict[Value, Any] = {**constants, **dict(zip(graph.inputs, inputs, strict=True))}
        for node in graph.nodes:
            tracer.origin = node.origin
            with torch.set_grad_enabled(node.grad_enabled):
                made = call_node(_bounded(node), values)
            for value, result in zip(node.outputs, flat_tensors(made) if node.outputs else []):
                if value is not None:
                    values[value] = result
        return tuple([values[output.value] for output in graph.outputs])

    return run


def _bounded(node: Node) -> Node:
    """The node with no end of a slice beyond its dimension, as `x[1:] = y` has it, which PyTorch's
    rule for batches takes for a size."""
    if node.op is not aten.slice_scatter.default or len(node.args) < 5:
        return node
    target, source, dim, start, end, *step = node.args
    kind = target.type if type(target) is Value else None
    if not isinstance(kind, TensorType) or type(dim) is not int or type(end) is not int:
        return node
    size = kind.shape[dim]
    if type(size) is not int or end <= size:
        return node
    return replace(node, args=(target, source, dim, start, size, *step))


def _plain(value: Value) -> TensorType:
    kind = value.type
    assert isinstance(kind, TensorType)
    return TensorType(kind.dtype, kind.shape, kind.stride, kind.device)


def _has_tangents(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
