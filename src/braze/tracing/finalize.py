"""Builds the graph from a finished trace: output aliases, write-backs, dead code elimination."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from braze.compat.torch.aten import aten
from braze.compat.torch.autograd_engine import (
    VERSION,
    follows_its_base,
    is_piece,
    is_plain_view,
    is_untracked_view,
)
from braze.frozen import frozen
from braze.ir.graphs.graph import Alias, Constant, Graph, Mutation, Output, Value, ViewStep
from braze.ir.graphs.op_effects import has_effects
from braze.ir.types import TensorType
from braze.shapes.facts import Facts
from braze.shapes.symbolic import SymbolicSize
from braze.shapes.unknowns import Unknown
from braze.tracing.fake_tensor import Place, TracedTensor, is_detached, place_of
from braze.tracing.graph_recorder import Call, GraphRecorder, data_step, node_of
from braze.tracing.shape_rules.strides import is_dense, same_layout
from braze.tracing.symbolic.infer_by_sampling import has_symbols
from braze.tracing.symbolic.size_rewriter import Expressions
from braze.tracing.unread_errors import with_checks


@final
@frozen(eq=False)
class FinishedTrace:
    """graph: its first outputs are the results asked for, in order; further ones are bases that
        several results share.
    inputs: the numbers (in the order of `add_input` calls) of the inputs that the graph keeps.
    requires_grad: of each result, whether autograd recorded a history for it.
    sizes: the unknowns whose numbers are passed after the inputs. expressions: what rewrote the
        graph's values, where sizes are symbolic. is_known: whether a call can tell every symbol.
    """

    graph: Graph
    inputs: tuple[int, ...]
    requires_grad: tuple[bool, ...] = ()
    sizes: tuple[Unknown, ...] = ()
    expressions: Expressions | None = None
    is_known: bool = True


def finish_trace(
    recorder: GraphRecorder,
    inputs: Sequence[Place],
    versions: Sequence[int],
    constants: Sequence[Constant],
    results: Sequence[torch.Tensor],
    facts: Facts | None = None,
    keeps_sized: bool = False,
    wanted: Iterable[Value] = (),
    checks: bool = False,
) -> FinishedTrace:
    """Close a trace; its calls go. `results` must be fake tensors of it. versions: of the inputs'.
    keeps_sized: inputs of symbolic size stay, also where nothing but their sizes is used.
    wanted: values of the trace that the graph computes although they are no results.
    checks: operators that raise do so where nobody reads what they give."""
    for result in results:
        if type(result) is not TracedTensor:
            raise TypeError(
                f"finish() takes fake tensors of the trace, not {type(result).__name__}"
            )
    places = [*map(place_of, results)]
    with torch.no_grad():
        mutations = tuple(
            Mutation(original, recorder.read(place), place.tracked_write, version)
            for place, original, version in _written_inputs(recorder, inputs, versions)
        )
        views = _views(results, inputs)
        outputs = _outputs(recorder, inputs, constants, places, views)
    outputs = _uncounted(_detached(outputs, results, inputs), places)
    outputs = _with_versions(outputs, results)
    if checks:
        with_checks(recorder, constants, outputs, mutations)
    used, calls = _live_calls(recorder.calls, outputs, mutations, wanted)
    recorder.calls.clear()
    original = [recorder.input_values[index] for index in range(len(inputs))]
    if keeps_sized and facts is not None:
        used.update(value for value in original if has_symbols(value.type))
    kept = [index for index, value in enumerate(original) if value in used]
    graph = Graph(
        inputs=tuple(original[index] for index in kept),
        constants=tuple(c for c in constants if c.value in used),
        nodes=tuple(map(node_of, _taken_out(calls))) if facts is None else (),
        outputs=outputs,
        mutations=mutations,
        used_once=frozenset(recorder.used_once & used),
    )
    histories = tuple(r.requires_grad for r in results)
    if facts is None:
        return FinishedTrace(graph, tuple(kept), histories)
    expressions = Expressions(facts)
    graph, sizes, is_known = expressions.graph(graph, _taken_out(calls))
    return FinishedTrace(graph, tuple(kept), histories, sizes, expressions, is_known)


def version_of(fake: torch.Tensor) -> int:
    """How often a fake tensor's memory was written to, by the count that PyTorch's dispatcher keeps
    of
    fake tensors as of any tensor; in inference mode there is none."""
    return 0 if fake.is_inference() else VERSION(fake)


def writes_of(fake: torch.Tensor, before: int) -> int:
    """How often an input counts as written to. One that inference mode made counts nothing; the
    same graph may be called with one that does. before: as often as the recorder saw it."""
    return before if fake.is_inference() else VERSION(fake)


def _written_inputs(
    recorder: GraphRecorder, inputs: Sequence[Place], versions: Sequence[int]
) -> Iterable[tuple[Place, Value, int]]:
    for index, place in enumerate(inputs):
        if place.version:
            yield place, recorder.input_values[index], versions[index]


def _outputs(
    recorder: GraphRecorder,
    inputs: Sequence[Place],
    constants: Sequence[Constant],
    places: Sequence[Place],
    views: set[Place],
) -> tuple[Output, ...]:
    _own_constants(recorder, constants, places)
    outputs: list[Output] = []
    extra: list[Output] = []
    bases = _seen_bases(places, views)
    owners: dict[Place, Value] = {}
    for base in bases:
        owner = next((p for p in places if p is base), None)
        value = _owned(recorder, base)
        owners[base] = value
        if owner is None:
            extra.append(Output(value))
    seen: set[Place] = set()
    for place in places:
        base = place.base or place
        if base.input_index >= 0:
            value = recorder.read(place)
            alias = _alias(recorder.input_values[base.input_index], place, base)
            outputs.append(Output(value, replace(alias, steps=steps_of(place))))
        elif base not in owners:
            outputs.append(Output(_owned(recorder, place)))
        elif place is base and base not in seen:
            seen.add(base)
            outputs.append(Output(owners[base]))
        else:
            alias, owner_type = _alias(owners[base], place, base), owners[base].type
            if isinstance(owner_type, TensorType) and owner_type.stride == base.type.stride:
                alias = replace(alias, steps=steps_of(place))
            outputs.append(Output(recorder.read(place), alias))
    return (*outputs, *extra)


def _views(results: Sequence[torch.Tensor], inputs: Sequence[Place]) -> set[Place]:
    """Of results, where there are gradients at all, those that autograd takes for views with a
    history: what leaves autograd's Function is none, so they are made again from their bases."""
    views: set[Place] = set()
    for result in results:
        if not (result.requires_grad and result._is_view()):
            continue
        place = place_of(result)
        if place.base is not None and not is_detached(place):
            views.add(place)
    return views if views and any(place.type.requires_grad for place in inputs) else set()


def _detached(
    outputs: Sequence[Output],
    results: Sequence[torch.Tensor],
    inputs: Sequence[Place],
) -> tuple[Output, ...]:
    """What the program detached, and views that carry no gradient though their base does, are
    marked so; kinds of views too."""
    gradients = any(place.type.requires_grad for place in inputs)
    return (
        *[
            replace(
                output,
                detached=_is_taken_for_none(result) or (gradients and _is_cut_off(output, result)),
                is_piece=is_piece(result),
                is_plain=result._is_view() and is_plain_view(result),
                is_untracked=is_untracked_view(result),
            )
            for output, result in zip(outputs, results)
        ],
        *outputs[len(results) :],
    )


def _is_taken_for_none(result: torch.Tensor) -> bool:
    """Whether a result names the memory of another value, and is no view for autograd."""
    place = place_of(result)
    return is_detached(place) and not result._is_view()


def _is_cut_off(output: Output, result: torch.Tensor) -> bool:
    place = place_of(result)
    base = place.base or place
    if output.alias is None or (base.input_index >= 0 and not base.type.requires_grad):
        return False
    of: Any = result._base
    if of is not None and not of.requires_grad and not is_detached(of.place):
        return False  # there is nothing to cut it off from, and `detach()` would give no view
    return not (result.requires_grad or _follows_alias(result))


def _uncounted(outputs: Sequence[Output], places: Sequence[Place]) -> tuple[Output, ...]:
    """Views that have a version of their own are marked so."""
    marked = [
        replace(output, uncounted=True) if output.alias and data_step(place) >= 0 else output
        for output, place in zip(outputs, places)
    ]
    return (*marked, *outputs[len(places) :])


def _with_versions(
    outputs: Sequence[Output], results: Sequence[torch.Tensor]
) -> tuple[Output, ...]:
    """What the program wrote to has the version that it has in eager; views have their base's."""
    found: dict[Value, int] = {}
    for output, result in zip(outputs, results):
        if version := 0 if output.uncounted else version_of(result):
            found[output.value if output.alias is None else output.alias.base] = version
    if not found:
        return tuple(outputs)
    return tuple(
        [
            replace(output, version=found.get(output.value, 0)) if output.alias is None else output
            for output in outputs
        ]
    )


def _follows_alias(result: torch.Tensor) -> bool:
    """Whether a view gets the history of a later write to what it is an alias of: what
    `x.detach().t()` follows is the detached tensor, not `x`."""
    return follows_its_base(result) and not is_detached(place_of(result))


def _seen_bases(places: Sequence[Place], views: set[Place]) -> list[Place]:
    """Bases, other than inputs, of more than one result, or of a view."""
    count: dict[Place, int] = {}
    for place in places:
        base = place.base or place
        if base.input_index < 0:
            count[base] = count.get(base, 0) + 1 + (place in views)
    return [base for base, number in count.items() if number > 1]


def _alias(base_value: Value, place: Place, base: Place) -> Alias:
    return Alias(base_value, place.type.shape, place.type.stride, place.offset - base.offset)


def steps_of(place: Place) -> tuple[ViewStep, ...]:
    """The operators by which the program made a view of its base; () where one of them counts in
    the storage, or has arguments that are not sizes."""
    found: list[ViewStep] = []
    walk: Place | None = place
    while walk is not None and walk.step is not None:
        step = walk.step
        if step.kwargs or step.op in _NO_STEP or not _are_sizes(step.args):
            return ()
        found.append(ViewStep(step.op, step.args))
        walk = walk.parent
    return tuple(reversed(found))


_NO_STEP = frozenset({aten.as_strided.default, aten.detach.default})


def _are_sizes(arguments: Sequence[object]) -> bool:
    """Whether arguments are whole numbers, symbolic ones among them, None, or tuples of such."""
    return all(
        _are_sizes(a)
        if isinstance(a, tuple)
        else a is None or isinstance(a, int | torch.SymInt | SymbolicSize)
        for a in arguments
    )


def _own_constants(
    recorder: GraphRecorder, constants: Sequence[Constant], places: Sequence[Place]
) -> None:
    """Results get memory of their own in place of captured data, which must never change; views of
    it are made again from that, so that they keep their strides."""
    fixed = {c.value for c in constants}
    for place in places:
        base = place.base or place
        if base.value in fixed:
            base.value = recorder.emit(aten.clone.default, (base.value,), {})
            base.version += 1


def _owned(recorder: GraphRecorder, place: Place) -> Value:
    """The place's value as a result that the caller owns, in the strides that eager gives it."""
    value = recorder.read(place)
    found, wanted = value.type, place.type
    assert isinstance(found, TensorType)
    if not same_layout(wanted.shape, wanted.stride, found.stride) and is_dense(
        wanted.shape,
        wanted.stride,
    ):
        value = recorder.restride(value, wanted)
    return value


def _live_calls(
    calls: Sequence[Call],
    outputs: Sequence[Output],
    mutations: Sequence[Mutation],
    wanted: Iterable[Value],
) -> tuple[set[Value], list[Call]]:
    """Every value that is used, and the calls that results, write-backs, effects or `wanted`
    need."""
    used: set[Value] = {o.value for o in outputs}
    used.update(wanted)
    used.update(o.alias.base for o in outputs if o.alias is not None)
    for mutation in mutations:
        used.add(mutation.input)
        used.add(mutation.value)
    kept: list[Call] = []
    for call in reversed(calls):
        op, args, kwargs, results = call[:4]
        for value in results:
            if value in used:
                break
        else:
            if not (has_effects(op) or (results and _is_counted(results[0]))):
                continue
        kept.append(call)
        _use(args, used)
        if kwargs:
            _use(kwargs.values(), used)
    kept.reverse()
    return used, kept


def _taken_out(calls: list[Call]) -> Iterator[Call]:
    """Calls in their order, each of which goes when its node is made."""
    calls.reverse()
    while calls:
        yield calls.pop()


def used_values(calls: Sequence[Call]) -> set[Value]:
    """All that these calls read."""
    used: set[Value] = set()
    for call in calls:
        _use(call[1], used)
        _use(call[2].values(), used)
    return used


def _is_counted(value: Value | None) -> bool:
    """Whether sizes depend on a number that a call computed."""
    return value is not None and getattr(value.type, "symbol", None) is not None


def _use(arguments: Iterable[Any], used: set[Value]) -> None:
    for argument in arguments:
        cls = type(argument)
        if cls is Value:
            used.add(argument)
        elif cls is tuple:
            _use(argument, used)
