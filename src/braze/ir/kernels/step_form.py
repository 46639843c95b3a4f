"""The form of a step: all of it but which buffers it touches. And the step on other buffers.

Two steps of one form do the same to the buffers at the same places of `touched`: one text serves
both kernels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, cast, final

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, Index
from braze.ir.kernels.schedule import Kernel, Step
from braze.ir.origin import Origin
from braze.shapes.expr import Expr, Symbol

# Fields that say nothing of what is computed.
_NAMES = frozenset({"name", "origin"})
_LEAVES = (Expr, Symbol, Index, Origin)


@final
@frozen
class StepForm:
    """number: equal for steps of one form. touched: its buffers in memory, in the form's order."""

    number: int
    touched: tuple[Buffer, ...]


@final
class StepForms:
    """Numbers forms in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, step: Step) -> StepForm:
        """The step's form."""
        places: dict[Buffer, int] = {}
        seen: dict[int, int] = {}

        def visit(node: Any) -> Hashable:
            kind = type(node)
            if kind is Buffer:
                place = places.setdefault(node, len(places))
                return (Buffer, place, node.dtype, node.shape, node.stride, node.device)
            if kind is tuple or kind is list:
                return (kind, *map(visit, node))
            if kind is float or kind is complex:
                return (kind, repr(node))
            names = None if kind in _LEAVES else _fields_of(kind)
            if names is None:
                return (kind, node)
            if (known := seen.get(id(node))) is not None:
                return known
            form = (kind, *[visit(getattr(node, name)) for name in names])
            number = self._numbers.setdefault(form, len(self._numbers))
            seen[id(node)] = number
            return number

        number = cast("int", visit(step))
        memory = {*step.memory} if isinstance(step, Kernel) else places.keys()
        return StepForm(number, tuple([buffer for buffer in places if buffer in memory]))


@final
class StepTemplate:
    """A step as the parts of it that buffers are in, to be made on others many times."""

    def __init__(self, step: Step, buffers: Collection[Buffer]) -> None:
        """buffers: those that others are to stand for."""
        self._whole: object = step
        # What makes each part, innermost first, and its operands: (part, _) or (None, constant).
        self._parts: list[tuple[Callable[[list[Any]], Any], list[tuple[int | None, Any]]]] = []
        self._buffers: dict[Buffer, int] = {}
        self._known: dict[int, int | None] = {}
        self._wanted = buffers
        self._place = self._visit(step)

    def on(self, others: Mapping[Buffer, Buffer]) -> Any:
        """The step with other buffers in the place of all of those."""
        if self._place is None:
            return self._whole
        made: list[Any] = [others[buffer] for buffer in self._buffers]
        made += [None] * len(self._parts)
        first = len(self._buffers)
        for number, (make, operands) in enumerate(self._parts):
            made[first + number] = make(
                [value if place is None else made[place if place >= 0 else first + ~place]
                 for place, value in operands]
            )  # fmt: skip
        return made[self._place if self._place >= 0 else first + ~self._place]

    def _visit(self, node: Any) -> int | None:
        """Where a node is: of buffers, its number, of parts ~number; None where it stays."""
        kind = type(node)
        if kind is Buffer:
            return (
                self._buffers.setdefault(node, len(self._buffers)) if node in self._wanted else None
            )
        if kind is tuple or kind is list:
            return self._part(kind, node) if node else None
        names = None if kind in _LEAVES else _all_fields_of(kind)
        if names is None:
            return None
        if id(node) not in self._known:
            operands = [getattr(node, name) for name in names]
            self._known[id(node)] = self._part(lambda values: kind(*values), operands)
        return self._known[id(node)]

    def _part(self, make: Callable[[list[object]], object], values: Sequence[object]) -> int | None:
        places = [self._visit(value) for value in values]
        if all(place is None for place in places):
            return None
        self._parts.append((make, list(zip(places, values, strict=True))))
        return ~(len(self._parts) - 1)


# --- private ---------------------------------------------------------------------------------


def _cached(find: Callable[[type], tuple[str, ...] | None]) -> Callable[[type], Any]:
    known: dict[type, tuple[str, ...] | None] = {}

    def cached(kind: type) -> tuple[str, ...] | None:
        try:
            return known[kind]
        except KeyError:
            return known.setdefault(kind, find(kind))

    return cached


@_cached
def _all_fields_of(kind: type) -> tuple[str, ...] | None:
    if not dataclasses.is_dataclass(kind) or not kind.__module__.startswith("braze.ir.kernels"):
        return None
    return tuple([field.name for field in dataclasses.fields(kind)])


@_cached
def _fields_of(kind: type) -> tuple[str, ...] | None:
    names = _all_fields_of(kind)
    return None if names is None else tuple([name for name in names if name not in _NAMES])
