"""A compiled backward that hands over gradients as they become ready, one bucket at a time.

    w1, w2, w3  ->  graph  ->  y            y  ->  graph(w3)  ->  stage 1(w2)  ->  stage 2(w1)

One node of autograd's gives all of its gradients at once, at its end: whoever waits for them (the
reducer of DistributedDataParallel, which sends each bucket when it is full) would begin when the
backward is over. So the inputs of a graph whose module is wrapped are on a chain of nodes. The
engine first takes the nodes that accumulate gradients, and so calls their hooks, and then the next
of the chain, which runs the next part of the backward (`autograd/stages.py`).

What remains to be run travels with the gradient that a node gives the next one, an attribute of a
tensor with nothing in it: a backward that stops early drops it, and two at once have one each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, final

import torch

from braze.compat.python.data_parallel import bucket_limits
from braze.compat.python.other_compilers import unseen_by_other_compilers
from braze.compat.torch.autograd_engine import quick_apply
from braze.frozen import frozen
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.graphs.joint_graph import BackwardStage, ForwardBackward
from braze.ir.types import TensorType
from braze.runtime.autograd.multi_root_nodes import NodePlan, in_buckets
from braze.runtime.launch.symbolic_sizes import compile_sizes
from braze.shapes.expr import Symbol, constant_value

Gradients: TypeAlias = tuple[torch.Tensor | None, ...]
# Gradients of the groups of a plan, one after the other.
Remaining: TypeAlias = Iterator[Gradients]


@final
@frozen
class StagePlan:
    """Which gradients are handed over together.

    groups: inputs of the forward by their numbers; places: the same, as places among those that
    want a gradient. device: of all tensors that carry one.
    """

    groups: tuple[tuple[int, ...], ...]
    places: tuple[tuple[int, ...], ...]
    device: torch.device


def plan_stages(
    pair: ForwardBackward, wanting: Sequence[int], limits: Sequence[int]
) -> StagePlan | None:
    """The groups, in the order in which the backward computes them; None where there is one, or
    where inputs are on several devices, whose threads of the engine take nodes in no common order.

    limits: a group is complete when its gradients have as many bytes; the last one is that of all
    further groups.
    """
    graph, given = pair.backward.graph, pair.backward.gradients
    values = [pair.forward.inputs[number] for number in wanting]
    devices = {value.type.device for value in values if isinstance(value.type, TensorType)}
    if len(devices) != 1 or len(wanting) < 2:
        return None
    order = {v: n for n, node in enumerate(graph.nodes) for v in node.outputs if v is not None}

    def ready_at(place: int) -> int:
        number = given[wanting[place]]
        return -1 if number is None else order.get(graph.outputs[number].value, -1)

    groups: list[list[int]] = [[]]
    filled = 0
    for place in sorted(range(len(wanting)), key=ready_at):
        if filled >= limits[min(len(groups), len(limits)) - 1]:
            groups.append([])
            filled = 0
        groups[-1].append(place)
        filled += _bytes(values[place].type)
    if len(groups) == 1:
        return None
    places = tuple(map(tuple, groups))
    numbers = tuple([tuple([wanting[place] for place in group]) for group in places])
    return StagePlan(numbers, places, devices.pop())


@final
class StagePlans:
    """The plans of a graph for wrappers of its module, by the sizes of their buckets."""

    def __init__(self, pair: ForwardBackward, wanting: Sequence[int]) -> None:
        self._pair, self._wanting = pair, wanting
        self._plans: dict[tuple[int, ...], StagePlan | None] = {}
        self._nodes: dict[StagePlan, NodePlan] = {}

    def plan_for(self, wrapper: object) -> StagePlan | None:
        """The plan, for a wrapper whose forward is running."""
        if wrapper is None:
            return None
        limits = bucket_limits(wrapper)
        if limits not in self._plans:
            self._plans[limits] = plan_stages(self._pair, self._wanting, limits)
        return self._plans[limits]

    def nodes_for(self, nodes: NodePlan, plan: StagePlan | None) -> NodePlan:
        """The nodes of inputs and results, where there are several."""
        if plan is None:
            return nodes
        if plan not in self._nodes:
            self._nodes[plan] = in_buckets(nodes, plan.places)
        return self._nodes[plan]


@final
class StagedRun:
    """The compiled stages of a backward."""

    def __init__(
        self,
        stages: Sequence[tuple[BackwardStage, GraphCallable]],
        symbols: Sequence[Symbol],
        input_count: int,
    ) -> None:
        last_use: dict[int, int] = {}
        for number, (stage, _) in enumerate(stages):
            last_use |= dict.fromkeys(stage.takes, number)
        self._stages = [
            _Stage(
                run,
                stage.takes,
                tuple([n for n in stage.takes if last_use[n] == number]),
                compile_sizes(symbols, (stage.graph.sizes.numbers,)),
                stage.gradients,
                tuple([output for output, _ in stage.keeps]),
            )
            for number, (stage, run) in enumerate(stages)
        ]
        self._unread = [n for n in range(input_count) if n not in last_use]

    def __call__(self, held: list[object], sizes: Sequence[int]) -> Remaining:
        """The gradients of each group. Takes `held`, the inputs of the whole backward, over: each
        goes behind its last use. sizes: the numbers of the forward's symbols."""
        for number in self._unread:
            held[number] = None
        for stage in self._stages:
            # Nothing here may name a gradient while the engine has it: it would be copied.
            yield stage(held, sizes)


@unseen_by_other_compilers
class CompiledStage(torch.autograd.Function):
    """What autograd knows of the inputs of one group, and of the groups behind it."""

    @staticmethod
    def forward(ctx: Any, device: Any, is_last: bool, *inputs: object) -> Any:
        """A tensor of nothing, whose history is theirs."""
        ctx.is_last = is_last
        ctx.set_materialize_grads(False)
        return torch.empty(0, device=device)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        """The gradients of the group, and what remains for the next one."""
        (rest,) = given
        if rest is None:  # none that the graph's backward could have been run for
            return (None,) * len(ctx.needs_input_grad)
        return (None, None, *next(rest.remaining), *(() if ctx.is_last else (rest,)))


def behind_stages(plan: StagePlan, wanting: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the graph's own node has for inputs: those of the first group, and a tensor whose
    history is the chain of all others."""
    chain: list[torch.Tensor] = []
    for places in reversed(plan.places[1:]):
        inputs = [wanting[place] for place in places]
        chain = [_of_stage(plan.device, not chain, *inputs, *chain)]
    return [*(wanting[place] for place in plan.places[0]), *chain]


def handed_over(plan: StagePlan, remaining: Remaining) -> tuple[object, ...]:
    """The gradients for what `behind_stages` gave."""
    first = next(remaining)
    rest = torch.empty(0, device=plan.device)
    rest.remaining = remaining  # type: ignore[attr-defined]
    return (*first, rest)


def in_groups(plan: StagePlan, gradients: Gradients) -> Remaining:
    """The gradients of a backward that was not divided, one for each input that wants one."""
    kept: list[torch.Tensor | None] = list(gradients)
    del gradients
    for places in plan.places:
        yield tuple([_taken(kept, place) for place in places])


# --- private ---------------------------------------------------------------------------------


@final
@frozen
class _Stage:
    """One stage. takes: the places of its inputs; frees: those of them that no later one takes;
    numbers: the sizes that it is told; keeps: numbers of results that later ones take."""

    run: GraphCallable
    takes: tuple[int, ...]
    frees: tuple[int, ...]
    numbers: Callable[[Sequence[int]], Any]
    gradients: tuple[int | None, ...]
    keeps: tuple[int, ...]

    def __call__(self, held: list[Any], sizes: Sequence[int]) -> Gradients:
        inputs = [held[place] for place in self.takes]
        for place in self.frees:
            held[place] = None
        (numbers,) = self.numbers(sizes)
        inputs.extend(numbers)
        made = self.run(inputs)
        held.extend([made[number] for number in self.keeps])
        return tuple([None if number is None else made[number] for number in self.gradients])


def _taken(kept: list[torch.Tensor | None], place: int) -> torch.Tensor | None:
    found, kept[place] = kept[place], None
    return found


def _bytes(kind: object) -> int:
    assert isinstance(kind, TensorType)
    count = 1
    for size in kind.shape:
        known = constant_value(size)
        count *= 1 if known is None else known
    return count * kind.dtype.itemsize


_of_stage = quick_apply(CompiledStage)
