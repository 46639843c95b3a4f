"""Calls of a graph whose inputs need gradients: one autograd Function around two compiled graphs.

    forward:   inputs -> results, saved values           (the Function's forward)
    backward:  saved values, tangents -> gradients       (compiled when it is first asked for)

Around the Function, under autograd: writes to inputs that gradients go through, and outputs that
are views. A backward that is itself to be differentiated (`create_graph=True`) is done by eager
kernels, from the inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, final

import torch

from braze.compat.python.data_parallel import WRAPPERS
from braze.compat.python.other_compilers import unseen_by_other_compilers
from braze.compat.torch.autograd_engine import (
    VERSION,
    Casts,
    active_casts,
    is_batched,
    is_write_refused,
    keeps_graph,
    note_write,
    preset_context,
    quick_apply,
    saved_data,
    saved_hooks,
    version_of,
    versions_of,
)
from braze.compat.torch.grad_mode import is_autocast_on
from braze.compat.torch.saved_tensor_hooks import raised_by_hooks, shows_saved_tensors
from braze.errors import RecomputedOtherwise
from braze.ir.captured.compile_request import (
    GraphCallable,
    HooksInForce,
    PartlyRun,
    SavingGraph,
    after_effects,
)
from braze.ir.graphs.graph import Alias, operands
from braze.ir.graphs.joint_graph import (
    Backward,
    BackwardStage,
    ForwardBackward,
    Saved,
    SavedInput,
    ViewOfInput,
    tangent_stride,
)
from braze.ir.graphs.op_effects import is_irrevocable
from braze.ir.graphs.run_graph import compile_graph_runner, write_back
from braze.ir.picking import items_at
from braze.ir.types import Size, TensorType
from braze.locks import make_lock
from braze.runtime.autograd.checkpoint_calls import in_checkpoint
from braze.runtime.autograd.differentiable_views import view_for_autograd
from braze.runtime.autograd.gradients_of_tangents import HandedOn
from braze.runtime.autograd.multi_root_nodes import Portion, plan_nodes, with_nodes
from braze.runtime.autograd.rng_state import RandomStates
from braze.runtime.autograd.staged_backward import (
    Gradients,
    Remaining,
    StagedRun,
    StagePlan,
    StagePlans,
    behind_stages,
    handed_over,
    in_groups,
)
from braze.runtime.launch.output_strides import restride, restride_batched
from braze.runtime.launch.symbolic_sizes import compile_reader, compile_sizes

Stages: TypeAlias = Sequence[tuple[BackwardStage, GraphCallable]]
Groups: TypeAlias = tuple[tuple[int, ...], ...]
# (which tangents are given, autocast, groups of inputs) -> the backward for them, compiled; in
# stages, one a group, where there are groups and it can be divided.
CompileBackward: TypeAlias = Callable[
    [tuple[bool, ...], Casts, Groups], tuple[Backward, GraphCallable | Stages]
]
FOREIGN_HOOKS = "the program's own hooks on saved tensors are in force"


@final
class TrainingGraph:
    """A `GraphCallable` whose results carry gradients.

    forward: `pair.forward`, compiled. compile_backward: is asked once for each choice of defined
    tangents. differentiate: the differentiable results again, by eager kernels under autograd, from
    the inputs with numbers in `reads`; None where the inputs do not say any more what they are.
    kept: results behind the program's own, which it reads as well. commits: a call of `forward`
    writes, or has other effects, so that the program cannot be run again after it.
    """

    def __init__(
        self,
        pair: ForwardBackward,
        forward: GraphCallable,
        compile_backward: CompileBackward,
        differentiate: GraphCallable | None,
        reads: Sequence[int],
        draws_on: tuple[torch.device, ...],
        kept: int = 0,
    ) -> None:
        self.pair = pair
        self.saving = SavingGraph()
        self.outputs = pair.outputs[: len(pair.outputs) - kept]
        self.forward = forward
        self.differentiate = differentiate
        self.reads = reads
        self.draws_on = draws_on
        self.result_count = len(pair.is_differentiable)
        owned = self.result_count - len(pair.writes)
        self.kept = slice(owned - kept, owned) if kept else None
        self.result_versions = [output.version for output in pair.forward.outputs]
        self.differentiable = [n for n, yes in enumerate(pair.is_differentiable) if yes]
        self.plain_results = [n for n, yes in enumerate(pair.is_differentiable) if not yes]
        # Behind the results come the numbers that the forward computes.
        self.plain_results += [self.result_count + n for n in range(len(pair.computed))]
        self._compile_backward = compile_backward
        self._backwards: dict[tuple[tuple[bool, ...], Casts, Groups], _CompiledBackward] = {}
        self._lock = make_lock()
        inputs = pair.forward.inputs
        self.tensor_count = len(inputs)
        self.tensors_of = _first(len(inputs), len(inputs) + len(pair.forward.sizes.numbers))
        self.sizes = compile_reader(pair.forward, pair.computed)
        self.has_symbols = bool(self.sizes.symbols)
        self.saves = bool(pair.saved)
        self.wanting = [n for n, value in enumerate(inputs) if _needs_gradient(value.type)]
        self._want = items_at(self.wanting)
        self.nodes = plan_nodes(pair, self.wanting)
        self.stages = StagePlans(pair, self.wanting)
        self.saved_inputs = _saved_inputs([s for s in pair.saved if isinstance(s, SavedInput)])
        self.saved_outputs = items_at(
            [s.index for s in pair.saved if not isinstance(s, SavedInput)]
        )
        self.order = _order(pair)
        self.writes_gradients = [(n, pair.is_differentiable[result]) for n, result in pair.writes]
        self.freed_by = pair.freed_by or (frozenset(range(self.result_count)),) * self.result_count
        acts = any(is_irrevocable(node.op) for node in pair.forward.nodes)
        self.commits = acts or bool(pair.forward.mutations)
        self.is_plain = not pair.writes and not pair.computed
        self.is_plain &= self.outputs == tuple(range(self.result_count))
        made = [output.output for output in pair.outputs if not isinstance(output, int)]
        views = tuple([_place(view.alias) for view in made])
        self._views = compile_sizes(self.sizes.symbols, views)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        for number, carries_gradient in self.writes_gradients:
            written = inputs[number]
            if is_write_refused(written, carries_gradient):
                raise RuntimeError("autograd refuses a write to an input of the graph")
            if written.retains_grad and not written.is_leaf:
                raise RuntimeError("an input of the graph retains its gradient and is written to")
        wanting = self._want(inputs)
        wrapper = WRAPPERS._active_ddp_module
        results: Sequence[torch.Tensor]
        if saved_hooks() is not None:
            results = self._apply_with_hooks(wrapper, inputs, wanting)
        elif wrapper is None:
            results = _apply(self, inputs, *wanting)
        else:
            results = self._in_stages(wrapper, inputs, wanting)
        if self.nodes is not None:
            *results, last = results
            plan = self.stages.plan_for(wrapper)
            nodes = self.stages.nodes_for(self.nodes, plan)
            run = functools.partial(_backward_of, last, plan)
            results = with_nodes(nodes, results, wanting, run)
        if self.is_plain:
            return results
        count = self.result_count
        return self._outside(inputs, results[:count], results[count:])

    def _in_stages(
        self, wrapper: object, inputs: Sequence[torch.Tensor], wanting: Sequence[Any]
    ) -> Any:
        """The Function where gradients may go to a reducer, in buckets."""
        plan = None if self.nodes is not None else self.stages.plan_for(wrapper)
        if plan is None:
            return _apply(self, inputs, *wanting)
        return _apply_staged(self, plan, inputs, *behind_stages(plan, wanting))

    def _apply_with_hooks(
        self, wrapper: object, inputs: Sequence[torch.Tensor], wanting: Sequence[object]
    ) -> Any:
        """The Function where hooks on saved tensors are in force. What they raise goes to whoever
        set them: so `torch.utils.checkpoint` ends a recomputation early."""
        if shows_saved_tensors():
            raise HooksInForce(FOREIGN_HOOKS)
        try:
            with in_checkpoint(self.saving):
                return self._in_stages(wrapper, inputs, wanting)
        except RecomputedOtherwise:
            raise
        except Exception as problem:
            if raised_by_hooks(problem):
                raise PartlyRun(problem) from None
            raise  # a fault of the graph

    def backward_for(
        self, given: tuple[bool, ...], casts: Casts = (), groups: Groups = ()
    ) -> _CompiledBackward:
        """The compiled backward for the tangents that are defined, the autocast that is active, and
        the groups that the gradients leave in; compiled at the first use."""
        key = given, casts, groups
        found = self._backwards.get(key)
        if found is None:
            with self._lock:
                found = self._backwards.get(key)
                if found is None:
                    backward, run = self._compile_backward(given, casts, groups)
                    found = self._backwards[key] = _CompiledBackward(self, backward, run)
        return found

    def _outside(
        self,
        inputs: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        computed: Sequence[torch.Tensor],
    ) -> Sequence[torch.Tensor]:
        """Writes and views that autograd must see."""
        pair = self.pair
        places = iter(self._views(self.sizes.read(inputs, computed)))
        try:
            return self._written(inputs, results, places)
        except Exception as fault:
            if pair.writes or self.commits:
                raise after_effects(fault) from None
            raise

    def _written(
        self,
        inputs: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        places: Iterator[Any],
    ) -> Sequence[torch.Tensor]:
        pair = self.pair
        for number, result in pair.writes:
            write_back(inputs[number], results[result], True)
        if pair.written_again:
            note_write(tuple([inputs[number] for number in pair.written_again]))
        made: list[torch.Tensor] = []
        for output in self.outputs:
            if isinstance(output, int):
                made.append(results[output])
                continue
            base = inputs if isinstance(output, ViewOfInput) else results
            made.append(view_for_autograd(base[output.index], output.output, next(places)))
        return made


@final
class _CompiledBackward:
    """A backward and how its tangents and gradients are handed over."""

    __slots__ = "by_operators gradients graph handed_on reads run staged tangents told".split()

    def __init__(
        self, graph: TrainingGraph, backward: Backward, run: GraphCallable | Stages
    ) -> None:
        self.run: GraphCallable | None = None
        self.staged: StagedRun | None = None
        if callable(run):
            self.run = run
        else:
            count = len(backward.graph.inputs)
            self.staged = StagedRun(run, graph.sizes.symbols, count)
        self.graph = backward.graph
        self.by_operators: GraphCallable | None = None
        forward = graph.pair.forward
        layouts = [_layout(forward.outputs[n].value.type) for n in backward.tangents]
        self.tangents = [(n, dtype) for n, (dtype, _) in zip(backward.tangents, layouts)]
        strides = tuple([stride for _, stride in layouts])
        self.told = compile_sizes(graph.sizes.symbols, (strides, backward.graph.sizes.numbers))
        self.gradients = [backward.gradients[number] for number in graph.wanting]
        self.handed_on = HandedOn.of(backward.graph, backward.tangents, self.gradients)
        used = {value for node in backward.graph.nodes for value in operands(node)}
        used.update(output.value for output in backward.graph.outputs)
        places = graph.order or range(len(graph.pair.saved))
        triples = zip(graph.pair.saved, places, backward.graph.inputs)
        self.reads = tuple([(saved, place) for saved, place, value in triples if value in used])

    def __call__(
        self, saved: list[Any], tangents: Sequence[object], sizes: Sequence[int]
    ) -> Gradients:
        """The gradients of the inputs that want one. Takes `saved` over. sizes: the numbers of
        the forward's symbols."""
        strides, numbers = self.told(sizes)
        run = self._take_tangents(saved, tangents, strides) or self.run
        assert run is not None, "a backward in stages is asked for them one by one"
        taken = self.handed_on.taken_by(saved)
        saved.extend(numbers)
        made = run(saved)
        gradients = [None if n is None else made[n] for n in self.gradients]
        return self.handed_on.settled(gradients, range(len(gradients)), tangents, taken)

    def in_stages(
        self, plan: StagePlan, saved: list[object], tangents: Sequence[Any], sizes: Sequence[int]
    ) -> Remaining:
        """The same, group by group."""
        staged = self.staged
        if staged is None or any(is_batched(tangents[number]) for number, _ in self.tangents):
            return in_groups(plan, self(saved, tangents, sizes))
        self._take_tangents(saved, tangents, self.told(sizes)[0])
        taken = self.handed_on.taken_by(saved)
        return self.handed_on.settle_each(plan.places, staged(saved, sizes), tangents, taken)

    def _take_tangents(
        self, saved: list[object], tangents: Sequence[Any], strides: Sequence[Any]
    ) -> GraphCallable | None:
        """Add the tangents to what was saved, as the backward expects them. What is to run it,
        where kernels cannot."""
        instead = None
        for (number, dtype), stride in zip(self.tangents, strides):
            tangent = tangents[number]
            if is_batched(tangent):  # kernels go through no batch: eager's operators do
                self.by_operators = self.by_operators or compile_graph_runner(self.graph)
                instead = self.by_operators
                tangent = restride_batched(tangent, dtype, stride)
            elif tangent.stride() != stride or tangent.dtype is not dtype:
                tangent = restride(tangent, dtype, stride)
            saved.append(tangent)
        return instead


@unseen_by_other_compilers
class CompiledFunction(torch.autograd.Function):
    """What autograd knows of a compiled graph."""

    @staticmethod
    def forward(ctx: Any, graph: TrainingGraph, inputs: Any, *wanting: object) -> Any:
        """Run the forward graph and save what the backward needs."""
        if graph.draws_on:
            ctx.random_states = RandomStates(graph.draws_on)
        made = graph.forward(inputs)
        try:
            ctx.graph = graph
            ctx.inputs = inputs = tuple(inputs)  # the caller empties its list
            ctx.versions = versions_of(graph.tensors_of(inputs))
            if graph.saves:
                ctx.save_for_backward(*graph.saved_inputs(inputs), *graph.saved_outputs(made))
            ctx.set_materialize_grads(False)
            results = tuple(made[: graph.result_count])
            for result in results:
                if result._is_view():
                    # A differentiable view made in here would refuse to be written to.
                    results = tuple([r.detach() if r._is_view() else r for r in results])
                    break
            if graph.kept is not None:
                ctx.again = results[graph.kept]
            if graph.has_symbols:
                computed = tuple(made[len(made) - len(graph.pair.computed) :])
                ctx.sizes = graph.sizes.read(inputs, computed)
                results += computed
            if graph.nodes is not None:
                results += (torch.empty(0, device="cpu"),)  # what it is for: see `_backward_of`
            if graph.plain_results:
                ctx.mark_non_differentiable(*[results[n] for n in graph.plain_results])
            return results
        except Exception as fault:
            if graph.commits:
                raise after_effects(fault) from None
            raise

    @staticmethod
    def backward(ctx: Any, *tangents: object) -> Any:
        """Run the backward for the tangents that came in."""
        graph: TrainingGraph = ctx.graph
        tangents = tangents[: graph.result_count]
        if _is_passed_through(ctx, tangents):
            return (None,) * len(ctx.needs_input_grad)
        if torch.is_grad_enabled():
            return (None, None, *_differentiable_backward(ctx, graph, tangents))
        backward, saved = _ready_backward(ctx, graph, tangents)
        return (None, None, *backward(saved, tangents, ctx.sizes))


@unseen_by_other_compilers
class CompiledInStages(torch.autograd.Function):
    """What autograd knows of a compiled graph whose gradients go to a reducer, in buckets."""

    @staticmethod
    def forward(ctx: Any, graph: TrainingGraph, plan: StagePlan, inputs: Any, *wanting: Any) -> Any:
        """As of `CompiledFunction`. wanting: see `behind_stages`."""
        ctx.plan = plan
        return CompiledFunction.forward(ctx, graph, inputs, *wanting)

    @staticmethod
    def backward(ctx: Any, *tangents: object) -> Any:
        """Run the first part of the backward."""
        graph: TrainingGraph = ctx.graph
        plan: StagePlan = ctx.plan
        tangents = tangents[: graph.result_count]
        if _is_passed_through(ctx, tangents):
            return (None,) * len(ctx.needs_input_grad)
        if torch.is_grad_enabled():
            remaining = in_groups(plan, _differentiable_backward(ctx, graph, tangents))
        else:
            backward, saved = _ready_backward(ctx, graph, tangents, plan.groups)
            remaining = backward.in_stages(plan, saved, tangents, ctx.sizes)
            del saved
        return (None, None, None, *handed_over(plan, remaining))


_apply = quick_apply(CompiledFunction)
_apply_staged = quick_apply(CompiledInStages)
_USED_UP = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)
# used: numbers of results whose backward has run. kept: what was saved, unpacked for others.
# again: what is read by who differentiates the backward.
for _function in (CompiledFunction, CompiledInStages):
    preset_context(_function, used=frozenset(), kept=None, sizes=(), again=())


# --- private ---------------------------------------------------------------------------------


def _is_passed_through(ctx: Any, tangents: Sequence[object]) -> bool:
    """Whether the engine passes through on its way from a result that needs none of this one's; in
    eager nothing would be there, and nothing be freed. It frees what is saved here."""
    if any(tangent is not None for tangent in tangents):
        return False
    if ctx.kept is None and ctx.inputs is not None and not keeps_graph():
        with suppress(RuntimeError):  # written to since: a backward that reads it says so
            ctx.kept = ctx.saved_tensors
    return True


def _ready_backward(
    ctx: object, graph: TrainingGraph, tangents: Sequence[object], groups: Groups = ()
) -> tuple[_CompiledBackward, list[Any]]:
    """The backward for these tangents, and what was saved for it."""
    given = tuple([tangent is not None for tangent in tangents])
    casts = active_casts() if is_autocast_on() else ()
    backward = graph.backward_for(given, casts, groups)
    unpacked = _take_saved(ctx, graph, given, backward)
    saved = list(unpacked) if graph.order is None else [unpacked[n] for n in graph.order]
    return backward, saved


def _backward_of(
    last: torch.Tensor, plan: StagePlan | None, tangents: Sequence[object]
) -> Iterator[Portion]:
    """The backward of a call that is behind nodes of its results, with all of its tangents. last:
    a result of the call with nothing in it, which keeps its node and what that saved alive."""
    ctx: Any = last.grad_fn
    # Nothing here may name a gradient while the engine has it: it would be copied.
    if plan is None or torch.is_grad_enabled():
        made: list[Gradients] = [CompiledFunction.backward(ctx, *tangents)[2:]]
        del tangents
        yield range(len(made[0])), made.pop()
        return
    backward, saved = _ready_backward(ctx, ctx.graph, tangents, plan.groups)
    remaining = backward.in_stages(plan, saved, tangents, ctx.sizes)
    del saved, tangents
    for places in plan.places:
        yield places, next(remaining)


def _take_saved(
    ctx: Any, graph: TrainingGraph, given: tuple[bool, ...], backward: _CompiledBackward
) -> Sequence[torch.Tensor]:
    """What was saved, for these tangents. Results of one graph may be differentiated one after the
    other, as in eager, where they share nothing that was saved: then it is kept for the others."""
    used, freed_by = [n for n, yes in enumerate(given) if yes], graph.freed_by
    if ctx.used and any(not freed_by[n].isdisjoint(ctx.used) for n in used):
        raise RuntimeError(_USED_UP)
    unpacked = _unpacked(ctx, graph, backward) if ctx.kept is None else ctx.kept
    if keeps_graph():
        return unpacked
    ctx.used = ctx.used.union(used)
    if all(not freed_by[n].isdisjoint(ctx.used) for n in graph.differentiable):
        ctx.maybe_clear_saved_tensors()
        ctx.inputs = ctx.kept = ctx.again = None
    elif graph.nodes is None:
        ctx.kept = unpacked
    return unpacked


def _unpacked(
    ctx: Any, graph: TrainingGraph, backward: _CompiledBackward
) -> Sequence[torch.Tensor]:
    """What was saved. An input or a result that was written to since is an error, as in eager,
    where this backward reads it; other results' backwards may."""
    try:
        saved: Sequence[torch.Tensor] = ctx.saved_tensors
        return saved
    except RuntimeError:
        found = None if ctx.inputs is None else saved_data(ctx)
        if found is None or not all(
            _is_unchanged(ctx, graph, saved, found[place]) for saved, place in backward.reads
        ):
            raise
        return found


def _is_unchanged(ctx: Any, graph: TrainingGraph, saved: Saved, data: torch.Tensor) -> bool:
    """Whether a saved value surely is what it was. A result that was not written to since is, and
    nobody writes to what is no result."""
    if isinstance(saved, SavedInput):
        version: int = ctx.versions[saved.index]
        return version_of(ctx.inputs[saved.index]) == version
    return saved.index >= graph.result_count or VERSION(data) == graph.result_versions[saved.index]


def _differentiable_backward(ctx: Any, graph: TrainingGraph, tangents: Sequence[Any]) -> Gradients:
    """The gradients as a differentiable function of inputs and tangents, by eager kernels: the
    forward is run again on views of the inputs, so that nothing above them is differentiated."""
    inputs = ctx.inputs
    if inputs is None:
        raise RuntimeError(_USED_UP)
    if graph.differentiate is None:
        raise RuntimeError(
            "braze cannot differentiate this backward (create_graph=True): the forward wrote to "
            "inputs that it depends on. Leave the in-place writes out of the compiled function."
        )
    tensors, numbers = inputs[: graph.tensor_count], inputs[graph.tensor_count :]
    if any(version_of(tensors[number]) != ctx.versions[number] for number in graph.reads):
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            "operation: an input of a compiled graph whose backward is to be differentiated "
            "(create_graph=True)."
        )
    copies = [t.view_as(t) if t.requires_grad else t for t in tensors]
    for number in graph.wanting:
        if not copies[number].requires_grad:  # any more: it has a gradient, which goes nowhere
            copies[number] = copies[number].detach().requires_grad_()
    now = RandomStates(graph.draws_on)
    if graph.draws_on:
        ctx.random_states.restore()
    try:
        results = graph.differentiate([*copies, *ctx.again, *numbers])
    finally:
        now.restore()
    given = [tangents[number] for number in graph.differentiable]
    pairs = [(r, t) for r, t in zip(results, given, strict=True) if t is not None]
    if not pairs:
        return (None,) * len(graph.wanting)
    return torch.autograd.grad(
        [result for result, _ in pairs],
        [copies[number] for number in graph.wanting],
        [tangent for _, tangent in pairs],
        create_graph=True,
        allow_unused=True,
    )


def _needs_gradient(kind: object) -> bool:
    return isinstance(kind, TensorType) and kind.requires_grad


def _first(count: int, given: int) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """The first so many of the items that are given."""
    return tuple if count == given else lambda items: items[:count]


def _saved_inputs(saved: Sequence[SavedInput]) -> Callable[[Sequence[object]], Sequence[object]]:
    """What is kept of the inputs."""
    get = items_at([one.index for one in saved])
    views = [number for number, one in enumerate(saved) if one.as_view]
    if not views:
        return get

    def get_with_views(inputs: Sequence[object]) -> Sequence[object]:
        found = list(get(inputs))
        for number in views:
            found[number] = found[number].detach()
        return found

    return get_with_views


def _order(pair: ForwardBackward) -> list[int] | None:
    """Where each saved value is, when inputs are saved first and then outputs; None for there."""
    count = sum(isinstance(one, SavedInput) for one in pair.saved)
    inputs, outputs = iter(range(count)), iter(range(count, len(pair.saved)))
    order = [next(inputs if isinstance(one, SavedInput) else outputs) for one in pair.saved]
    return None if order == list(range(len(order))) else order


def _layout(kind: object) -> tuple[torch.dtype, tuple[Size, ...]]:
    assert isinstance(kind, TensorType)
    return kind.dtype, tangent_stride(kind)


def _place(alias: Alias | None) -> tuple[object, ...]:
    assert alias is not None
    steps = tuple([step.args for step in alias.steps])
    return tuple(alias.shape), tuple(alias.stride), alias.offset, steps
