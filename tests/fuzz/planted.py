"""Bugs planted in what capture gives and in how its guards are checked, which the fuzz must find.

A bug is a change of every captured frame (a guard left out, a write lost, an order changed, a wrong
cell, an alias missed), or of the text of a guard.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import braze.pipeline
import braze.runtime.guards.compile
import braze.runtime.guards.tensors
from braze.capture.state.side_effects import SideEffects
from braze.ir.captured import frame as ir
from braze.ir.captured.frame import CapturedFrame
from braze.ir.captured.guard import Guard, GuardKind
from tests.fuzz.isolation import Checker

Change: TypeAlias = Callable[[CapturedFrame], CapturedFrame]


@final
@dataclass(frozen=True, slots=True)
class Planted:
    """install: makes the bug, in a process that has no other use."""

    name: str
    install: Callable[[], None]


def programs_until_found(bug: Planted, programs: int, first: int = 0) -> int | None:
    """How many programs it takes until one differs that does not without the bug; None if none
    of so many does."""
    planted, clean = Checker(prepare=bug.install), Checker()
    try:
        for count, seed in enumerate(range(first, first + programs), 1):
            if planted(seed) is not None and clean(seed) is None:
                return count
        return None
    finally:
        planted.close()
        clean.close()


# --- ways to plant -----------------------------------------------------------------------------


def _changed(name: str, change: Change) -> Planted:
    """Change every captured frame."""

    def install() -> None:
        capture = braze.pipeline.capture_frame

        def capture_wrongly(request: Any) -> Any:
            captured = capture(request)
            return change(captured) if isinstance(captured, CapturedFrame) else captured

        braze.pipeline.capture_frame = capture_wrongly

    return Planted(name, install)


def _unguarded(name: str, is_left_out: Callable[[Guard], bool]) -> Planted:
    """Leave guards out."""

    def change(captured: CapturedFrame) -> CapturedFrame:
        kept = tuple(guard for guard in captured.guards if not is_left_out(guard))
        return replace(captured, guards=kept)

    return _changed(f"guard left out: {name}", change)


def _unguarded_kind(kind: GuardKind) -> Planted:
    return _unguarded(kind.value, lambda guard: guard.kind is kind)


def _equals(*types: type) -> Callable[[Guard], bool]:
    def is_left_out(guard: Guard) -> bool:
        return guard.kind is GuardKind.EQUALS_MATCH and type(guard.expected) in types

    return is_left_out


def _is_singleton(guard: Guard) -> bool:
    return guard.kind is GuardKind.ID_MATCH and guard.expected in (None, True, False)


def _is_object(guard: Guard) -> bool:
    return guard.kind is GuardKind.ID_MATCH and not _is_singleton(guard)


def _without_strides(captured: CapturedFrame) -> CapturedFrame:
    """Tensor guards that take any stride."""

    def loosened(guard: Guard) -> Guard:
        if guard.kind is not GuardKind.TENSOR_MATCH:
            return guard
        facts = replace(guard.expected, stride=(None,) * len(guard.expected.stride))
        return replace(guard, expected=facts)

    return replace(captured, guards=tuple(map(loosened, captured.guards)))


def _tensor_term_dropped(name: str, pattern: str) -> Planted:
    """Leave a fact out of every tensor guard: of its text, and where it is asked without text."""

    def install() -> None:
        tensors, guards = braze.runtime.guards.tensors, braze.runtime.guards.compile
        write, differs = tensors.tensor_condition, tensors._tensor_difference

        def differs_wrongly(facts: Any, value: Any) -> str | None:
            return differs(replace(facts, **{name: None}), value)

        def write_wrongly(*args: Any) -> str:
            terms = write(*args).split(" and ")
            return " and ".join(term for term in terms if not re.search(pattern, term))

        tensors.tensor_condition = guards.tensor_condition = write_wrongly  # type: ignore[attr-defined]
        tensors._tensor_difference = differs_wrongly

    return Planted(f"guard left out: {name} of tensors", install)


def _lost(name: str, is_lost: Callable[[Any], bool]) -> Planted:
    """Lose effects."""

    def change(captured: CapturedFrame) -> CapturedFrame:
        kept = tuple(effect for effect in captured.effects if not is_lost(effect))
        return replace(captured, effects=kept)

    return _changed(f"write lost: {name}", change)


def _is_deletion(effect: Any) -> bool:
    return isinstance(effect, (ir.SetItem, ir.SetAttribute, ir.SetGlobal)) and effect.value is None


def _adds(effect: Any) -> bool:
    """Whether an effect only adds to a container."""
    return isinstance(effect, ir.CapturedCall) and effect.function in (
        list.extend,
        set.update,
        collections.deque.extend,
    )


def _is_new_cell(recipe: Any) -> bool:
    return isinstance(recipe, ir.NewCall)


def _reversed_effects(captured: CapturedFrame) -> CapturedFrame:
    """Writes to what existed before, last first."""
    fills = tuple(e for e in captured.effects if isinstance(e, ir.FillInstance))
    writes = tuple(e for e in captured.effects if not isinstance(e, ir.FillInstance))
    return replace(captured, effects=(*fills, *reversed(writes)))


def _without_last_mutation(captured: CapturedFrame) -> CapturedFrame:
    graph = captured.graph
    return replace(captured, graph=replace(graph, mutations=graph.mutations[:-1]))


def _swapped_mutations(captured: CapturedFrame) -> CapturedFrame:
    """Two inputs of one type get each other's contents."""
    graph = captured.graph
    values = [m.value for m in graph.mutations]
    if len(values) < 2 or values[0].type != values[1].type:
        return captured
    first, second, *rest = graph.mutations
    swapped = (replace(first, value=second.value), replace(second, value=first.value), *rest)
    return replace(captured, graph=replace(graph, mutations=swapped))


def _outputs(change: Callable[[Any], Any]) -> Change:
    def changed(captured: CapturedFrame) -> CapturedFrame:
        outputs = tuple(map(change, captured.graph.outputs))
        return replace(captured, graph=replace(captured.graph, outputs=outputs))

    return changed


def _without_alias(output: Any) -> Any:
    return replace(output, alias=None)


def _at_the_start(output: Any) -> Any:
    alias = output.alias
    return output if alias is None else replace(output, alias=replace(alias, offset=0))


def _recipes_changed(change: Callable[[Any], Any]) -> Change:
    """Change every recipe of the exit, at any depth; recipes are shared, so each once."""

    def changed(captured: CapturedFrame) -> CapturedFrame:
        done: dict[int, Any] = {}
        return replace(
            captured,
            exit=_mapped(captured.exit, change, done),
            effects=tuple(_mapped(effect, change, done) for effect in captured.effects),
        )

    return changed


def _mapped(node: Any, change: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    if isinstance(node, tuple) and type(node) is tuple:
        return tuple(_mapped(item, change, done) for item in node)
    if not dataclasses.is_dataclass(node) or type(node).__module__ != ir.__name__:
        return node
    if id(node) not in done:
        fields = {
            f.name: _mapped(getattr(node, f.name), change, done) for f in dataclasses.fields(node)
        }
        done[id(node)] = change(replace(node, **fields))
    return done[id(node)]


def _rotated_closure(node: Any) -> Any:
    if isinstance(node, ir.NewFunction) and len(node.closure) > 1:
        return replace(node, closure=(*node.closure[1:], node.closure[0]))
    return node


def _without_defaults(node: Any) -> Any:
    if isinstance(node, ir.NewFunction) and node.defaults is not None:
        return replace(node, defaults=ir.FromConstant((0,)))
    return node


def _swapped_locals(node: Any) -> Any:
    """After a break, two locals have each other's tensor."""
    if not isinstance(node, ir.FrameState):
        return node
    made = [n for n, (_, v) in enumerate(node.local_values) if isinstance(v, ir.FromGraph)]
    values = list(node.local_values)
    if len(made) > 1:
        a, b = made[:2]
        values[a], values[b] = (values[a][0], values[b][1]), (values[b][0], values[a][1])
    return replace(node, local_values=tuple(values))


def _stale_reads(table: str) -> Callable[[], None]:
    """What was written in the frame is read as it was before."""

    def install() -> None:
        read = SideEffects.read_cell if table == "cells" else SideEffects.read

        def read_stale(self: Any, *args: Any) -> Any:
            kept = getattr(self, table)
            setattr(self, table, {})
            try:
                return read(self, *args)
            finally:
                setattr(self, table, kept)

        setattr(SideEffects, read.__name__, read_stale)

    return install


BUGS: tuple[Planted, ...] = (
    _unguarded("numbers", _equals(int, float)),
    _unguarded("strings", _equals(str)),
    _unguarded("None, True and False", _is_singleton),
    _unguarded("functions and classes", _is_object),
    _unguarded_kind(GuardKind.NAMESPACE),
    _unguarded_kind(GuardKind.TYPE_MATCH),
    _unguarded_kind(GuardKind.SAME_OBJECT),
    _unguarded_kind(GuardKind.CLASS_LOOKUPS),
    _unguarded_kind(GuardKind.DICT_LACKS),
    _unguarded_kind(GuardKind.FUNCTIONS),
    _unguarded_kind(GuardKind.NO_HOOKS),
    _unguarded_kind(GuardKind.AMBIENT),
    _unguarded_kind(GuardKind.LENGTH),
    _unguarded_kind(GuardKind.DICT_KEYS),
    _unguarded_kind(GuardKind.DICT_CONTAINS),
    _unguarded_kind(GuardKind.STORAGE_OVERLAP),
    _unguarded_kind(GuardKind.STORAGE_OFFSET),
    _tensor_term_dropped("dtype", r"\.dtype is"),
    _tensor_term_dropped("requires_grad", r"requires_grad"),
    _changed("guard left out: strides of tensors", _without_strides),
    _lost("cells", lambda e: isinstance(e, ir.SetCell) and not _is_new_cell(e.cell)),
    _lost("deletions", _is_deletion),
    _lost("globals", lambda e: isinstance(e, ir.SetGlobal)),
    _lost("contents of containers", lambda e: isinstance(e, ir.ReplaceContents) or _adds(e)),
    _lost("slots", lambda e: isinstance(e, ir.SetAttribute) and not e.through_dict),
    _lost("ambient state", lambda e: isinstance(e, ir.CapturedCall) and not _adds(e)),
    _changed("write lost: last tensor", _without_last_mutation),
    _changed("order changed: tensors written", _swapped_mutations),
    _changed("order changed: writes last first", _reversed_effects),
    _changed("alias missed: results", _outputs(_without_alias)),
    _changed("alias missed: offset in its base", _outputs(_at_the_start)),
    _changed("wrong cell: closures rotated", _recipes_changed(_rotated_closure)),
    _changed("wrong local after a break", _recipes_changed(_swapped_locals)),
    _changed("wrong default of a new function", _recipes_changed(_without_defaults)),
    Planted("stale read: cells", _stale_reads("cells")),
    Planted("stale read: dicts", _stale_reads("writes")),
)
