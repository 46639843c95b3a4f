"""Traces the backward of a graph: PyTorch's own autograd engine runs on fake tensors.

    %2 = exp(%0)                       %2 = exp(%0)
    output %2                  ->      output %2
                                       %4 = mul(%3, %2)        # %3 is the tangent of %2
                                       gradient %4 of %0

The graph is run once more on fake tensors that require grad, so that autograd notes its formulas;
then the engine runs them, and what reaches the dispatcher is the backward. Refused
(NotDifferentiable): formulas that need data, and operators without a formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from braze.autograd.simplify import simplify
from braze.compat.torch.aten import aten
from braze.compat.torch.autograd_engine import (
    Casts,
    casting,
    freed_together,
    gradients,
    plain_autograd,
    reached_from,
)
from braze.ir.graphs.graph import Alias, Graph, Mutation, Node, Value, computed_symbol
from braze.ir.graphs.graph_sizes import missing_symbols, symbols_of
from braze.ir.graphs.joint_graph import JointGraph, joint_as_graph, tangent_stride
from braze.ir.graphs.region import is_region, region_op
from braze.ir.graphs.run_graph import call_node, flat_tensors
from braze.ir.origin import UNKNOWN, Origin, of_backward
from braze.ir.types import TensorType
from braze.shapes.binding import NO_SIZES, Sizes
from braze.shapes.facts import Facts
from braze.tracing import DataDependent, Tracer, UnknownTensor, Untraceable
from braze.tracing.fake_tensor import TracedTensor, apart, with_history
from braze.tracing.graph_recorder import node_of
from braze.tracing.python_decompositions import TAKES_NUMBERS
from braze.tracing.regions import trace_region
from braze.tracing.symbolic.size_rewriter import Expressions, retraced


@final
class NotDifferentiable(Exception):
    """The backward cannot be traced; the message says why. Eager autograd may still do it."""

    def __init__(self, reason: str, origin: Origin) -> None:
        super().__init__(reason)
        self.origin = origin


def trace_joint(
    graph: Graph,
    given: Sequence[bool] | None = None,
    casts: Casts = (),
    plain: Graph | None = None,
    keeps_detached: bool = False,
) -> JointGraph:
    """The graph with its backward. Raises NotDifferentiable.

    given: per result, whether its gradient comes in; None: wherever one can. casts: of the autocast
    under which the backward is called. plain: as in `JointGraph`.
    keeps_detached: the graph's own `detach`es stay, through which gradients of gradients stop.
    Two traces of one graph give the same numbers to the values of their forward parts.
    """
    tracer = Tracer(replayable=False)
    tracer.gives_numbers = tracer.gives_integers = tracer.gives_sizes = True
    live = graph
    if _is_symbolic(graph):
        live, tracer.facts = retraced(graph)
        tracer.facts.origin = lambda: tracer.origin
    replay = _Replay(live, tracer)
    try:
        with plain_autograd(apart), tracer:
            joint = replace(replay.run(given, casts), plain=plain)
    except (DataDependent, Untraceable, UnknownTensor, NotImplementedError, RuntimeError) as error:
        raise NotDifferentiable(str(error), replay.origin) from error
    detached = replay.detached if keeps_detached else ()
    if tracer.facts is None:
        return simplify(joint, detached)
    return simplify(_as_data(joint, tracer.facts))


# --- private ---------------------------------------------------------------------------------


@final
@dataclass(slots=True)
class _Replay:
    """One run of a graph on fake tensors; `values` maps its values to them. detached: what its
    `detach`es gave. constant: results beside others of one operator that have no gradients."""

    graph: Graph
    tracer: Tracer
    values: dict[Value, Any]
    origin: Origin
    detached: set[Value]
    constant: set[Value]

    def __init__(self, graph: Graph, tracer: Tracer) -> None:
        self.graph, self.tracer = graph, tracer
        self.values, self.origin, self.detached = {}, UNKNOWN, set()
        self.constant = set()

    def run(self, given: Sequence[bool] | None, casts: Casts) -> JointGraph:
        tracer, graph = self.tracer, self.graph
        for value in graph.inputs:
            assert isinstance(value.type, TensorType)
            self.values[value] = tracer.add_input_of_type(value.type)
        for constant in graph.constants:
            self.values[constant.value] = tracer.add_constant(constant.tensor)
        for node in graph.nodes:
            self._run_node(node)
        results, writes = self._results()
        inputs = tuple(tracer.recorder.input_values)
        forward = self._forward(inputs)
        start = len(tracer.recorder.calls)
        needs = [result.requires_grad for result in results]
        wanted = needs if given is None else [a and b for a, b in zip(needs, given, strict=True)]
        tangents = self._tangents(results, wanted)
        with casting(casts):
            found = self._gradients(results, tangents)
        return JointGraph(
            forward=forward,
            backward=tuple(map(node_of, tracer.recorder.calls[start:])),
            results=tuple(map(tracer.value_of, results)),
            writes=writes,
            tangents=tuple(None if t is None else tracer.value_of(t) for t in tangents),
            gradients=found,
            is_differentiable=tuple(needs),
            freed_by=freed_together([result.grad_fn for result in results]),
            reached_from=reached_from(
                [result.grad_fn for result in results],
                [self.values[value] for value in graph.inputs],
            ),
            source=graph,
            constant=frozenset(self.constant),
        )

    def _run_node(self, node: Node) -> None:
        self.origin = self.tracer.origin = node.origin
        torch.set_grad_enabled(node.grad_enabled)
        try:
            if node.op in TAKES_NUMBERS:  # called, it would specialise its sizes
                made = self.tracer.call(node.op, node.args, dict(node.kwargs))
            elif is_region(node):
                operands, sizes = node.args
                given = [self.values[value] for value in operands]
                types = [value.type for value in node.outputs if value is not None]
                made = trace_region(self.tracer, region_op(node), given, sizes, types)
            else:
                made = call_node(node, self.values)
        finally:
            torch.set_grad_enabled(True)
        results = flat_tensors(made) if node.outputs else []
        if node.op is aten.detach.default:
            self.detached.update(map(self.tracer.value_of, results))
        for value, result in zip(node.outputs, results):
            if value is not None:
                once = value in self.graph.used_once and result.requires_grad
                # A node stands for the write, whose backward leaves nothing to a second one.
                self.values[value] = with_history(result) if once else result
        if any(getattr(result, "requires_grad", False) for result in results):
            plain = [x for x in results if isinstance(x, TracedTensor) and not x.requires_grad]
            self.constant.update([x.place.value for x in plain])
        self._remember_origin(results, node.origin)

    def _remember_origin(self, results: Sequence[Any], origin: Origin) -> None:
        """Let what autograd runs for these results have the origin of the call that made them.
        The hook must not lead back to a fake tensor: nothing would ever break that cycle."""
        recorder, origin = self.tracer.recorder, of_backward(origin)
        for result in results:
            if getattr(result, "grad_fn", None) is not None:
                result.grad_fn.register_prehook(lambda _: setattr(recorder, "origin", origin))
                return

    def _results(self) -> tuple[list[Any], tuple[int, ...]]:
        """The fake tensors of the results; for those that are written to inputs, the inputs."""
        graph = self.graph
        results = [self.values[o.value] for o in graph.outputs if o.alias is None]
        writes = []
        for mutation in graph.mutations:
            value = self.values[mutation.value]
            if is_tracked(mutation, value):
                writes.append(graph.inputs.index(mutation.input))
                results.append(value)
        return results, tuple(writes)

    def _forward(self, inputs: tuple[Value, ...]) -> Graph:
        recorder = self.tracer.recorder
        value_of = self.tracer.value_of
        # A number of captured data is known: what takes it has it as it is.
        found = {
            old: made for old, made in self.values.items() if not isinstance(made, int | float)
        }
        new = {old: value_of(fake) for old, fake in found.items()}
        new.update(zip(self.graph.inputs, inputs, strict=True))
        outputs = tuple(
            replace(o, value=new[o.value], alias=_moved(o.alias, new)) for o in self.graph.outputs
        )
        mutations = tuple(
            replace(m, input=new[m.input], value=new[m.value]) for m in self.graph.mutations
        )
        return Graph(
            inputs=inputs,
            constants=tuple(self.tracer.constants),
            nodes=tuple(map(node_of, recorder.calls)),
            outputs=outputs,
            mutations=mutations,
        )

    def _tangents(self, results: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
        made: list[Any] = []
        for result, is_wanted in zip(results, wanted, strict=True):
            found = self.tracer.value_of(result).type
            assert isinstance(found, TensorType)
            plain = TensorType(found.dtype, found.shape, tangent_stride(found), found.device)
            made.append(self.tracer.add_input_of_type(plain) if is_wanted else None)
        return made

    def _gradients(
        self, results: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[Value | None, ...]:
        pairs = [(r, t) for r, t in zip(results, tangents, strict=True) if t is not None]
        fakes = [self.values[value] for value in self.graph.inputs]
        wanted = [fake for fake in fakes if fake.requires_grad]
        found: dict[int, Value] = {}
        if pairs and wanted:
            made = gradients([r for r, _ in pairs], [t for _, t in pairs], wanted)
            with torch.no_grad():
                for fake, gradient in zip(wanted, made, strict=True):
                    if gradient is not None:
                        found[id(fake)] = self.tracer.value_of(gradient)
        return tuple(found.get(id(fake)) for fake in fakes)


def _is_symbolic(graph: Graph) -> bool:
    kinds = [value.type for value in graph.inputs if isinstance(value.type, TensorType)]
    sizes = (size for kind in kinds for size in (*kind.shape, *kind.stride))
    if graph.sizes != NO_SIZES or any(map(computed_symbol, graph.nodes)):
        return True
    return not all(isinstance(size, int) for size in sizes)


def _as_data(joint: JointGraph, facts: Facts) -> JointGraph:
    """The joint graph of a symbolic trace with expressions for its sizes."""
    final = Expressions(facts)

    def values(found: Sequence[Value | None]) -> tuple[Any, ...]:
        return tuple([None if value is None else final.value(value) for value in found])

    made = replace(
        joint,
        forward=final.rewritten(joint.forward),
        backward=tuple(map(final.node, joint.backward)),
        results=values(joint.results),
        tangents=values(joint.tangents),
        gradients=values(joint.gradients),
        source=final.rewritten(joint.source),
        assumed=tuple(facts.learned()),
    )
    if joint.plain is not None:
        made = replace(made, plain=final.of_data(joint.plain))
    # The numbers are passed as they were for the graph that was traced.
    numbers = tuple([final.final(number) for number in joint.source.sizes.numbers])
    wanted = symbols_of(joint_as_graph(made))
    derived = final.derived(wanted)
    _, used = missing_symbols(wanted, made.forward.inputs, derived)
    sizes = Sizes(numbers, used, final.checks((*made.forward.nodes, *made.backward)))
    return replace(
        made,
        forward=replace(made.forward, sizes=sizes),
        source=replace(made.source, sizes=sizes),
        plain=None if made.plain is None else replace(made.plain, sizes=sizes),
        derived=derived,
    )


def is_tracked(mutation: Mutation, value: torch.Tensor) -> bool:
    """Whether autograd records a write-back of this value."""
    kind = mutation.input.type
    needs = isinstance(kind, TensorType) and kind.requires_grad
    return mutation.tracked and (needs or value.requires_grad)


def _moved(alias: Alias | None, new: dict[Value, Value]) -> Alias | None:
    if alias is None:
        return None
    return replace(alias, base=new[alias.base])
