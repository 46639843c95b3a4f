"""Makes parameters and buffers of modules constants of a captured frame (the option `freeze`).

    guards: L['self'] TYPE_MATCH Model            guards: L['self'] TYPE_MATCH Model, ID_MATCH
            L['self'].weight TENSOR_MATCH    ->           L['x'] TENSOR_MATCH
            L['x'] TENSOR_MATCH
    inputs: L['x'], L['self'].weight              inputs: L['x']
    graph:  input %0, input %1                    graph:  input %0, constant %1

No guard asks for a weight then: the modules that lead to it are compared by identity, so that an
entry never serves another one, nor a part that was replaced. Left as inputs: what the frame writes
to, gives back as a result or a view, has symbolic sizes, or belongs to no module.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from braze.errors import CannotFreeze
from braze.frozen import frozen
from braze.ir.captured.frame import CapturedFrame
from braze.ir.captured.guard import Guard, GuardKind
from braze.ir.captured.source import ObjectSource, Source, operands_of
from braze.ir.graphs.graph import Constant, Graph, Value, needs_gradients, operands
from braze.ir.origin import UNKNOWN
from braze.ir.types import TensorType
from braze.shapes.memory_overlap import Access
from braze.trace import CompileRecorder

# Guards that ask for one tensor, by the guard's source alone.
_OF_TENSORS = frozenset({GuardKind.TENSOR_MATCH, GuardKind.STORAGE_OFFSET, GuardKind.VIEW})
# Guards that compare the places of a tuple; fewer than two are nothing to compare.
_OF_PLACES = frozenset({GuardKind.APART, GuardKind.DISTINCT, GuardKind.NONE_WATCHED})
_OF_PAIRS = frozenset({GuardKind.SAME_OBJECT, GuardKind.DIFFERENT_OBJECT})


@final
@frozen(eq=False)
class FrozenTensor:
    """A parameter or buffer that a frame reads.

    input: the number of the graph's input. modules: those that lead to it, by where they are."""

    input: int
    tensor: torch.Tensor
    modules: Mapping[Source, torch.nn.Module]


def find_parameters(
    captured: CapturedFrame, read: Callable[[Source], Any]
) -> tuple[FrozenTensor, ...]:
    """The inputs that can be constants. read: the object at a source, as the frame is entered."""
    if captured.dropped or captured.switched:  # leaves of a training step
        return ()
    owners, graph = _Owners(read), captured.graph
    fixed = _fixed_values(captured)
    found = []
    for number, value in enumerate(graph.inputs):
        source, kind = captured.inputs[number], value.type
        if value in fixed or not isinstance(kind, TensorType):
            continue
        if not all(type(size) is int for size in (*kind.shape, *kind.stride)):
            continue
        modules = owners.of(source)
        if modules:
            found.append(FrozenTensor(number, read(source), modules))
    return tuple(found)


def freeze_parameters(captured: CapturedFrame, tensors: Collection[FrozenTensor]) -> CapturedFrame:
    """The frame with these inputs as constants."""
    if not tensors:
        return captured
    gone = {each.input: each for each in tensors}
    graph = captured.graph
    places = [n for n in range(len(captured.inputs)) if n not in gone]
    numbers = {old: new for new, old in enumerate(places)}
    constants = [Constant(graph.inputs[n], each.tensor.detach()) for n, each in gone.items()]
    inputs = tuple([value for n, value in enumerate(graph.inputs) if n not in gone])
    draws = [replace(d, input=numbers.get(d.input, -1)) for d in captured.draws]
    sources = {captured.inputs[n] for n in gone}
    modules = {source: m for each in tensors for source, m in each.modules.items()}
    narrowed = [_without(guard, sources) for guard in captured.guards]
    kept = [guard for guard in narrowed if guard is not None]
    return replace(
        captured,
        guards=(*kept, *_guards_on(modules, captured.guards)),
        inputs=tuple([captured.inputs[n] for n in places]),
        graph=replace(graph, inputs=inputs, constants=(*graph.constants, *constants)),
        draws=tuple(draws),
    )


def written_tensors(
    captured: CapturedFrame, read: Callable[[Source], Any]
) -> dict[Source, torch.Tensor]:
    """What the frame writes to, of what was there when it was entered."""
    written = {mutation.input for mutation in captured.graph.mutations}
    pairs = zip(captured.graph.inputs, captured.inputs)
    return {source: read(source) for value, source in pairs if value in written}


@final
class Freezer:
    """Freezes the frames of one compiled callable."""

    def __init__(self) -> None:
        # By the identity of tensors that are alive: constants of a graph, and what one writes to.
        self._frozen: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self._written: weakref.WeakValueDictionary[int, torch.Tensor] = (
            weakref.WeakValueDictionary()
        )

    def frozen(
        self, captured: CapturedFrame, read: Callable[[Source], object], recorder: CompileRecorder
    ) -> CapturedFrame:
        """The frame with parameters and buffers as constants. read: as in `find_parameters`.
        Raises CannotFreeze where it records gradients or writes to a constant of another graph."""
        origin = recorder.origin
        if _gives_gradients(captured.graph):
            hint = "Call it under torch.no_grad() or torch.inference_mode(), or without the option."
            raise CannotFreeze("this call records gradients", origin=origin, hint=hint)
        for source, tensor in written_tensors(captured, read).items():
            if id(tensor) in self._frozen:
                reason = f"{source} is written to here, and a constant of another graph"
                hint = "Have one graph read and write it, or compile without the option."
                raise CannotFreeze(reason, origin=origin, hint=hint)
            self._written[id(tensor)] = tensor
        found = find_parameters(captured, read)
        found = tuple([each for each in found if id(each.tensor) not in self._written])
        self._frozen.update({id(each.tensor): each.tensor for each in found})
        if found:
            recorder.count("frozen parameters", len(found))
        return freeze_parameters(captured, found)


# --- private ---------------------------------------------------------------------------------


def _gives_gradients(graph: Graph) -> bool:
    """Whether gradients flow from a result, or what is written, to an input. Autocast records those
    of its casts of weights, also where nothing else does."""
    if not needs_gradients(graph):
        return False
    tracked = {value for value in graph.inputs if getattr(value.type, "requires_grad", False)}
    for node in graph.nodes:
        if node.grad_enabled and not tracked.isdisjoint(operands(node)):
            tracked.update(value for value in node.outputs if value is not None)
    given = [output.value for output in graph.outputs] + [m.value for m in graph.mutations]
    made = {value for node in graph.nodes for value in node.outputs if value is not None}
    return any(value in tracked and value in made for value in given)


class _Owners:
    """The modules that lead to tensors."""

    def __init__(self, read: Callable[[Source], object]) -> None:
        self._read = read
        self._held: dict[int, set[int]] = {}  # by module: its parameters and buffers

    def of(self, source: Source) -> dict[Source, torch.nn.Module]:
        """The modules that lead to a parameter or buffer of one, by where they are; none of any
        other tensor."""
        tensor = self._read(source)
        found = {each: self._read(each) for each in _prefixes(source)}
        modules = {each: m for each, m in found.items() if isinstance(m, torch.nn.Module)}
        is_held = any(id(tensor) in self._tensors(module) for module in modules.values())
        return modules if is_held else {}

    def _tensors(self, module: torch.nn.Module) -> set[int]:
        if id(module) not in self._held:
            held = [*module.parameters(), *module.buffers()]
            self._held[id(module)] = {id(tensor) for tensor in held}
        return self._held[id(module)]


def _prefixes(source: Source) -> Iterator[Source]:
    """What a source is read from, innermost first."""
    while operands := operands_of(source):
        source = operands[0]
        yield source


def _fixed_values(captured: CapturedFrame) -> set[Value]:
    """Inputs whose memory the program gets to see or writes to."""
    graph = captured.graph
    fixed = {mutation.input for mutation in graph.mutations} | set(graph.used_once)
    fixed |= {output.value for output in graph.outputs}
    fixed |= {output.alias.base for output in graph.outputs if output.alias is not None}
    return fixed


def _without(guard: Guard, gone: Collection[Source]) -> Guard | None:
    """The guard without what it asks of some tensors; None where nothing is left."""
    if guard.kind in _OF_TENSORS:
        return None if guard.source in gone else guard
    if guard.kind in _OF_PLACES:
        kept = tuple([source for source in guard.expected if source not in gone])
        least = 1 if guard.kind is GuardKind.NONE_WATCHED else 2
        return replace(guard, expected=kept) if len(kept) >= least else None
    if guard.kind in _OF_PAIRS:
        return None if {guard.source, guard.expected} <= {*gone} else guard
    if guard.kind is GuardKind.STORAGE_OVERLAP:
        kept = tuple([tuple([s for s in group if s not in gone]) for group in guard.expected])
        written = any(group for role, group in zip(Access, kept) if role is not Access.READ)
        return replace(guard, expected=kept) if written and sum(map(len, kept)) > 1 else None
    return guard


def _guards_on(
    modules: Mapping[Source, torch.nn.Module], guards: Sequence[Guard]
) -> Iterator[Guard]:
    origins = {guard.source: guard.origin for guard in guards}
    for source, module in modules.items():
        if not isinstance(source, ObjectSource):  # the entry holds that very object
            yield Guard(source, GuardKind.ID_MATCH, module, origins.get(source, UNKNOWN))
