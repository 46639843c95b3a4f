"""Calls of a graph under transforms of torch.func, or with tangents of forward mode.

    vmap(grad(compiled))(x)     ->     at each level, from the innermost outwards:
                                         grad   a node whose backward is a graph of gradients
                                         vmap   the graph of the whole batch
                                         jvp    the graph, and one of tangents
                                       below all levels: compiled kernels

PyTorch takes a call through the levels by the rules of one `torch.autograd.Function`; each rule
asks for another graph, made of the one before when it is first needed, and calls that the same way,
so that transforms nest. Where no graph can be made, the operators of the one before run under
PyTorch's own rules, and the journal is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, final

import torch

from braze.compat.python.other_compilers import unseen_by_other_compilers
from braze.compat.torch.autograd_engine import AutogradFunction
from braze.compat.torch.functorch import have_tangents, is_transformed, tangents_of
from braze.errors import CannotTransform
from braze.frozen import frozen
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.graphs.graph import Graph, Output
from braze.ir.graphs.region import with_layouts
from braze.ir.graphs.run_graph import compile_graph_runner
from braze.ir.types import TensorType, ValueType
from braze.locks import make_lock

# Graphs made of one by rules, one a choice of inputs, rows and randomness; another one would be
# compiled in vain where each call has another number of rows.
_MOST_MADE = 16
_Tensors: TypeAlias = Sequence[torch.Tensor]


class Trained(Protocol):
    """A graph and that of its gradients, as `braze.autograd.TrainingGraphs` says."""

    @property
    def forward(self) -> Graph: ...
    @property
    def backward(self) -> Graph: ...
    @property
    def saved(self) -> tuple[tuple[bool, int], ...]: ...
    @property
    def tangents(self) -> tuple[int, ...]: ...
    @property
    def gradients(self) -> tuple[int | None, ...]: ...
    @property
    def differentiable(self) -> tuple[bool, ...]: ...


class Rules(Protocol):
    """How graphs are made of a graph. Each raises CannotTransform."""

    def own(self, graph: Graph) -> Graph:
        """The graph without results that are views; the others in memory of their own."""

    def train(self, graph: Graph, wanted: tuple[bool, ...]) -> Trained:
        """The graph with gradients of wanted inputs, from all those of results."""

    def gradients(
        self, graph: Graph, wanted: tuple[bool, ...], given: tuple[bool, ...]
    ) -> tuple[Graph, tuple[int, ...]]:
        """`(inputs, gradients of given results) -> gradients of wanted inputs`, and the numbers of
        wanted inputs that have none, which are left out."""

    def batch(self, graph: Graph, batched: tuple[bool, ...], size: int, randomness: str) -> Graph:
        """The graph for all rows; `batched` inputs and all results have `size` in front."""

    def tangents(self, graph: Graph, given: tuple[bool, ...]) -> Graph:
        """`(inputs, tangents of given inputs) -> tangents of floating and complex results`."""

    def compile(self, graph: Graph) -> GraphCallable:
        """The graph as kernels."""

    def note(self, reason: str) -> None:
        """A call runs by eager kernels."""


@final
class TransformedGraph:
    """A `GraphCallable` for calls under transforms. graph: one of which `why_untransformable` knows
    nothing."""

    def __init__(self, graph: Graph, rules: Rules) -> None:
        self.unit = _Unit(rules.own(graph), rules, trains=True)
        self._outputs = graph.outputs
        self._numbers = {value: number for number, value in enumerate(graph.inputs)}
        made = [output.value for output in graph.outputs if output.alias is None]
        self._made = {value: number for number, value in enumerate(made)}

    def __call__(self, inputs: _Tensors) -> _Tensors:
        results = _applied(self.unit, inputs)
        return [self._result(output, inputs, results) for output in self._outputs]

    def _result(self, output: Output, inputs: _Tensors, results: _Tensors) -> torch.Tensor:
        alias = output.alias
        if alias is None:
            return results[self._made[output.value]]
        made = self._made.get(alias.base)
        view = inputs[self._numbers[alias.base]] if made is None else results[made]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not output.is_untracked):
            for step in alias.steps:
                view = step.op(view, *step.args)
        return view.detach() if output.detached else view


@final
@frozen(eq=False)
class _Pull:
    """A unit's gradients of `wanted` inputs, by another unit from what the call saved: inputs and
    results, by `(is a result, number)`, and the gradients of all of `tangents`."""

    unit: _Unit
    saved: tuple[tuple[bool, int], ...]
    tangents: tuple[int, ...]
    gradients: tuple[int | None, ...]
    wanted: tuple[bool, ...]


@final
class _Unit:
    """A graph, its program, and the units that rules made of it.

    differentiable: per result, whether gradients flow through it. pull: its gradients; None where
    the graph is run again for them. trains: whether a unit with a pull may be made of it: not of
    gradients, since torch.func lets all of them be differentiated, and few are. missing: of
    gradients, the wanted inputs that have none.
    """

    def __init__(
        self,
        graph: Graph,
        rules: Rules,
        differentiable: tuple[bool, ...] = (),
        pull: _Pull | None = None,
        trains: bool = False,
        missing: tuple[int, ...] = (),
    ) -> None:
        self.graph, self.rules, self.pull = graph, rules, pull
        self.trains, self.missing = trains, missing
        kinds = [output.value.type for output in graph.outputs]
        self.has_tangent = tuple(map(_is_differentiable, kinds))
        more = self.has_tangent[len(differentiable) :]
        self.differentiable = (*differentiable, *more)
        self._made: dict[tuple[Any, ...], _Unit | None] = {}
        self._program: GraphCallable | None = None
        self._lock = make_lock()

    def run(self, inputs: _Tensors) -> _Tensors:
        """The results for tensors of no level."""
        program = self.program()
        with torch.no_grad():
            return program(inputs)

    def program(self) -> GraphCallable:
        """What runs the graph; compiled now if it was not yet."""
        if self._program is None:
            with self._lock:
                if self._program is None:
                    self._program = with_layouts(self.graph, self.rules.compile(self.graph))
        return self._program

    def by_operators(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The graph's operators, for PyTorch's own rules."""
        runner = compile_graph_runner(self.graph)
        return lambda *inputs: tuple(runner(inputs))

    def training(self, wanted: tuple[bool, ...]) -> _Unit | None:
        """The unit with a `pull`, whose results behind this one's are saved; None where there is no
        graph."""

        def make() -> _Unit:
            pair = self.rules.train(self.graph, wanted)
            backward = _Unit(pair.backward, self.rules)
            pull = _Pull(backward, pair.saved, pair.tangents, pair.gradients, wanted)
            return _Unit(pair.forward, self.rules, pair.differentiable, pull)

        return self._of(make, "gradient", wanted)

    def gradients(self, wanted: tuple[bool, ...], given: tuple[bool, ...]) -> _Unit | None:
        """By the rule of this name."""

        def make() -> _Unit:
            graph, missing = self.rules.gradients(self.graph, wanted, given)
            return _Unit(graph, self.rules, missing=missing)

        return self._of(make, "gradient of some results", wanted, given)

    def batch(self, batched: tuple[bool, ...], size: int, randomness: str) -> _Unit | None:
        """By the rule of this name."""
        return self._by(self.rules.batch, self.differentiable, "batch", batched, size, randomness)

    def tangents(self, given: tuple[bool, ...]) -> _Unit | None:
        """By the rule of this name."""
        return self._by(self.rules.tangents, (), "tangent", given)

    def _by(
        self, rule: Callable[..., Graph], differentiable: tuple[bool, ...], *key: object
    ) -> _Unit | None:
        def make() -> _Unit:
            graph = rule(self.graph, *key[1:])
            return _Unit(graph, self.rules, differentiable, trains=self.trains)

        return self._of(make, *key)

    def _of(self, make: Callable[[], _Unit], *key: object) -> _Unit | None:
        with self._lock:
            if key not in self._made:
                if len(self._made) >= _MOST_MADE:
                    self.rules.note(
                        f"the {key[0]} of a compiled graph is computed by eager kernels: "
                        f"{_MOST_MADE} were compiled, of other inputs or numbers of rows"
                    )
                    return None
                self._made[key] = None
                try:
                    self._made[key] = make()
                except CannotTransform as reason:
                    said = (
                        f"the {key[0]} of a compiled graph is computed by eager kernels: {reason}"
                    )
                    self.rules.note(said)
            return self._made[key]


def _is_differentiable(kind: ValueType) -> bool:
    assert isinstance(kind, TensorType)
    return kind.dtype.is_floating_point or kind.dtype.is_complex


def _applied(unit: _Unit, inputs: Sequence[Any]) -> _Tensors:
    """The unit's results at the level that the thread is in."""
    count = len(unit.graph.outputs)
    if not count:
        return ()
    if not is_transformed():
        _prepare_tangents(unit, inputs)
    if unit.trains and torch.is_grad_enabled() and any(unit.differentiable):
        wanted = tuple([x.requires_grad for x in inputs])
        unit = (unit.training(wanted) if any(wanted) else None) or unit
    results: Sequence[torch.Tensor] = _TransformedCall.apply(unit, *inputs)[:count]
    return results


def _prepare_tangents(unit: _Unit, inputs: Sequence[Any]) -> None:
    """Make what `_TransformedCall.jvp` needs outside of all transforms: PyTorch calls that where
    operators of fake tensors are not dispatched any more."""
    given = have_tangents(inputs)
    if any(given) and (made := unit.tangents(given)) is not None:
        made.program()


@unseen_by_other_compilers
class _TransformedCall(AutogradFunction):
    """A unit's call, and what each transform makes of it."""

    @staticmethod
    def forward(unit: _Unit, *inputs: Any) -> Any:
        return tuple(unit.run(inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        unit, *tensors = inputs
        ctx.unit, ctx.count = unit, len(tensors)
        ctx.set_materialize_grads(False)
        saved = () if unit.pull is None else unit.pull.saved
        ctx.save_for_backward(*tensors, *[output[number] for is_made, number in saved if is_made])
        ctx.save_for_forward(*tensors)
        pairs = zip(output, unit.differentiable, strict=True)
        ctx.mark_non_differentiable(*[result for result, flows in pairs if not flows])

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        wanted, given = ctx.needs_input_grad[1:], [t is not None for t in tangents]
        if not any(given) or not any(wanted):
            return (None,) * (1 + len(wanted))
        unit: _Unit = ctx.unit
        kept = ctx.saved_tensors
        if unit.pull is not None and _is_for(unit.pull, wanted, given):
            return (None, *_pulled(unit.pull, kept[: ctx.count], kept[ctx.count :], tangents))
        inputs, present = kept[: ctx.count], [t for t in tangents if t is not None]
        made = unit.gradients(wanted, tuple(given))
        missing = () if made is None else made.missing
        if made is None:
            found = iter(_pulled_back(unit, inputs, wanted, given, present))
        else:
            found = iter(_applied(made, [*inputs, *present]))
        has = [wants and number not in missing for number, wants in enumerate(wanted)]
        return (None, *[next(found) if yes else None for yes in has])

    @staticmethod
    def vmap(info: Any, in_dims: Any, unit: _Unit, *inputs: Any) -> object:
        dims = in_dims[1:]
        batched = tuple([dim is not None for dim in dims])
        rows = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(inputs, dims)]
        made = unit.batch(batched, info.batch_size, info.randomness)
        if made is None:
            places = tuple([0 if yes else None for yes in batched])
            results: _Tensors = torch.vmap(unit.by_operators(), places, 0, info.randomness)(*rows)
        else:
            results = _applied(made, rows)
        return tuple(results), (0,) * len(results)

    @staticmethod
    def jvp(ctx: Any, _: object, *tangents: Any) -> object:
        unit: _Unit = ctx.unit
        inputs, given = ctx.saved_tensors[: ctx.count], tuple([t is not None for t in tangents])
        present = [t for t in tangents if t is not None]
        made = unit.tangents(given)
        if made is None:
            found = iter(_pushed_forward(unit, inputs, given, present))
        else:
            found = iter(_applied(made, [*inputs, *present]))
        made_of = [next(found) if yes else None for yes in unit.has_tangent]
        return tuple([t if yes else None for t, yes in zip(made_of, unit.differentiable)])


def _is_for(pull: _Pull, wanted: Sequence[bool], given: Sequence[bool]) -> bool:
    """Whether these gradients are among those that a unit's `pull` computes."""
    has_all = [number for number, yes in enumerate(given) if yes] == list(pull.tangents)
    return has_all and all(known or not asked for known, asked in zip(pull.wanted, wanted))


def _pulled(
    pull: _Pull, inputs: _Tensors, made: _Tensors, tangents: Sequence[object]
) -> list[object]:
    """The gradients of inputs, from what a call saved."""
    results = iter(made)
    saved = [next(results) if is_made else inputs[number] for is_made, number in pull.saved]
    found = _applied(pull.unit, [*saved, *[tangents[number] for number in pull.tangents]])
    return [None if number is None else found[number] for number in pull.gradients]


def _pulled_back(
    unit: _Unit,
    inputs: _Tensors,
    wanted: Sequence[bool],
    given: Sequence[bool],
    tangents: _Tensors,
) -> _Tensors:
    """The gradients by PyTorch's own rule."""
    run = unit.by_operators()

    def of_wanted(*moving: object) -> tuple[object, ...]:
        found = iter(moving)
        made = run(*[next(found) if yes else x for x, yes in zip(inputs, wanted)])
        return tuple([result for result, yes in zip(made, given) if yes])

    moving = [x for x, yes in zip(inputs, wanted) if yes]
    gradients: _Tensors = torch.func.vjp(of_wanted, *moving)[1](tuple(tangents))
    return gradients


def _pushed_forward(
    unit: _Unit, inputs: _Tensors, given: Sequence[bool], tangents: _Tensors
) -> _Tensors:
    """The tangents by PyTorch's own rule."""
    run = unit.by_operators()

    def of_given(*moving: object) -> tuple[Any, ...]:
        found = iter(moving)
        made = run(*[next(found) if yes else x for x, yes in zip(inputs, given)])
        return tuple([result for result, yes in zip(made, unit.has_tangent) if yes])

    moving = tuple([x for x, yes in zip(inputs, given) if yes])
    return tangents_of(of_given, moving, tangents)
