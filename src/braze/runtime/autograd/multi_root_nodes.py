"""A graph whose results depend on different inputs, as nodes of autograd's.

    a, b  ->  graph  ->  y (of a), z (of a and b)

One node would have an edge to every input, and autograd's engine follows all edges of a node: the
backward of y would walk the history of b, call its hooks, and use it up. So inputs that the same
results depend on are one node, and so are results that depend on the same inputs:

    y  ->  Results(y)  ->  Inputs(a)
    z  ->  Results(z)  ->  Inputs(a), Inputs(b)

Nodes of results keep the gradients that come in. The engine takes the latest nodes first, so they
all come before nodes of inputs, the first of which has the graph's backward run, once for all. What
that gives the others is kept until it is their turn, or the engine is done.

Where gradients go to a reducer in buckets (`staged_backward.py`), inputs of several buckets are
several nodes, those that are ready first the latest, and each has the backward run as far as it
needs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, final

import torch

from braze.compat.python.other_compilers import unseen_by_other_compilers
from braze.compat.torch.autograd_engine import graph_task, queue_callback, quick_apply
from braze.frozen import frozen
from braze.ir.graphs.joint_graph import ForwardBackward
from braze.ir.types import TensorType
from braze.locks import make_lock

# Places of inputs among those that want a gradient, and their gradients.
Portion: TypeAlias = tuple[Sequence[int], Sequence[torch.Tensor | None]]
# Tangents of all results -> the gradients, in portions that hold each input once. Who gives them
# keeps none of them: the engine copies a gradient that something else refers to.
RunBackward: TypeAlias = Callable[[Sequence[Any]], Iterator[Portion]]


@final
@frozen
class ResultGroup:
    """Results that depend on the same inputs. sources: the groups of inputs, by their numbers."""

    results: tuple[int, ...]
    sources: tuple[int, ...]


@final
@frozen
class NodePlan:
    """sources: groups of inputs that the same results depend on, as places among those that want a
    gradient."""

    sources: tuple[tuple[int, ...], ...]
    groups: tuple[ResultGroup, ...]
    result_count: int


def plan_nodes(pair: ForwardBackward, wanting: Sequence[int]) -> NodePlan | None:
    """The nodes of a graph; None where one is as good: every result depends on every input that
    wants a gradient. And where such inputs and results are on several devices, whose threads of the
    engine take nodes in no common order, or where it is not known which inputs a result depends
    on."""
    results = [number for number, yes in enumerate(pair.is_differentiable) if yes]
    reached = [pair.reached_from[number] for number in wanting]
    values = [pair.forward.inputs[number] for number in wanting]
    values += [pair.forward.outputs[number].value for number in results]
    devices = {value.type.device for value in values if isinstance(value.type, TensorType)}
    if all(numbers.issuperset(results) for numbers in reached) or len(devices) > 1:
        return None
    sources: dict[frozenset[int], list[int]] = {}
    for place, numbers in enumerate(reached):
        if numbers:
            sources.setdefault(numbers, []).append(place)
    groups: dict[tuple[int, ...], list[int]] = {}
    for result in results:
        own = tuple([number for number, numbers in enumerate(sources) if result in numbers])
        groups.setdefault(own, []).append(result)
    if not all(groups):
        return None
    return NodePlan(
        tuple(map(tuple, sources.values())),
        tuple([ResultGroup(tuple(made), own) for own, made in groups.items()]),
        len(pair.is_differentiable),
    )


def in_buckets(plan: NodePlan, buckets: Sequence[Sequence[int]]) -> NodePlan:
    """The plan with a node for each bucket of a group of inputs. buckets: places, in the order in
    which their gradients are ready; of such nodes the engine takes the latest first."""
    parts = [
        (number, tuple([place for place in places if place in bucket]))
        for bucket in map(frozenset, reversed(buckets))
        for number, places in enumerate(plan.sources)
    ]
    parts = [(number, places) for number, places in parts if places]
    groups = [
        ResultGroup(
            group.results, tuple([n for n, (of, _) in enumerate(parts) if of in group.sources])
        )
        for group in plan.groups
    ]
    return NodePlan(tuple([places for _, places in parts]), tuple(groups), plan.result_count)


def with_nodes(
    plan: NodePlan, made: Sequence[torch.Tensor], wanting: Sequence[torch.Tensor], run: RunBackward
) -> list[torch.Tensor]:
    """The results behind their nodes. made: the results by themselves. wanting: the inputs."""
    call = _NodesOfCall(plan.result_count, run)
    device = made[plan.groups[0].results[0]].device
    sources = [
        _of_inputs(call, places, device, *[wanting[place] for place in places])
        for places in plan.sources
    ]
    results = list(made)
    for group in plan.groups:
        own = [made[number] for number in group.results]
        behind = _of_results(call, group.results, own, *[sources[n] for n in group.sources])
        for number, result in zip(group.results, behind, strict=True):
            results[number] = result
    return results


# --- private ---------------------------------------------------------------------------------


@final
class _Running:
    """A backward under way."""

    def __init__(self, portions: Iterator[Portion]) -> None:
        self._portions = portions
        self._given: set[int] = set()

    def until(self, places: Sequence[int], gradients: dict[int, torch.Tensor]) -> None:
        """Run it until inputs have their gradients, which are added to `gradients`."""
        while not self._given.issuperset(places):
            given, made = next(self._portions)
            self._given.update(given)
            for place, gradient in zip(given, made, strict=True):
                if gradient is not None:
                    known = gradients.get(place)
                    gradients[place] = gradient if known is None else known + gradient


@final
class _Pass:
    """What waits while the engine runs: gradients of results, and of inputs."""

    def __init__(self, result_count: int) -> None:
        self.tangents: list[Any] = [None] * result_count
        self.gradients: dict[int, torch.Tensor] = {}
        self._running: list[_Running] = []

    def run(self, run: RunBackward, places: Sequence[int]) -> None:
        """Have the graph's backward make gradients of inputs of those of results."""
        if any(tangent is not None for tangent in self.tangents):
            tangents, self.tangents = self.tangents, [None] * len(self.tangents)
            self._running.append(_Running(run(tangents)))
        for running in self._running:
            running.until(places, self.gradients)


@final
class _NodesOfCall:
    """What the nodes of one call of a graph share."""

    def __init__(self, result_count: int, run: RunBackward) -> None:
        self._result_count, self._run = result_count, run
        self._passes: dict[int, _Pass] = {}  # by the engine's number of its run
        self._lock = make_lock()

    def put(self, results: Sequence[int], tangents: Sequence[object]) -> None:
        """Keep gradients that have come in."""
        with self._lock:
            task = graph_task()
            if task not in self._passes:
                self._passes[task] = _Pass(self._result_count)
                queue_callback(functools.partial(self._passes.pop, task, None))
            for number, tangent in zip(results, tangents, strict=True):
                self._passes[task].tangents[number] = tangent

    def take(self, places: Sequence[int]) -> tuple[torch.Tensor | None, ...]:
        """The gradients of inputs."""
        with self._lock:
            found = self._passes[graph_task()]
            found.run(self._run, places)
            return tuple([found.gradients.pop(place, None) for place in places])


@unseen_by_other_compilers
class CompiledInputs(torch.autograd.Function):
    """What autograd knows of inputs that the same results depend on."""

    @staticmethod
    def forward(ctx: Any, call: Any, places: Any, device: Any, *inputs: object) -> Any:
        """A tensor of nothing, whose history is theirs."""
        ctx.call, ctx.places = call, places
        ctx.set_materialize_grads(False)
        return torch.empty(0, device=device)

    @staticmethod
    def backward(ctx: Any, *nothing: object) -> Any:
        """Their gradients."""
        return (None, None, None, *ctx.call.take(ctx.places))


@unseen_by_other_compilers
class CompiledResults(torch.autograd.Function):
    """What autograd knows of results that depend on the same inputs."""

    @staticmethod
    def forward(ctx: Any, call: Any, numbers: Any, results: Any, *sources: object) -> Any:
        """The results, whose history is that of the inputs behind `sources`."""
        ctx.call, ctx.numbers = call, numbers
        ctx.set_materialize_grads(False)
        return tuple([result.detach() for result in results])

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        """The gradients wait for those of other results."""
        ctx.call.put(ctx.numbers, tangents)
        return (None,) * len(ctx.needs_input_grad)


_of_inputs = quick_apply(CompiledInputs)
_of_results = quick_apply(CompiledResults)
