"""Values from outside that are taken in part by part (slices, tuples of numbers that change) or by
value, though each call may bring another object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from braze.ir.captured.guard import GuardKind
from braze.ir.captured.source import AttributeSource, ItemSource, Source

if TYPE_CHECKING:
    from braze.capture.state.guard_context import GuardContext


def wrap_slice(guard_context: GuardContext, value: slice, source: Source) -> slice:
    """A slice of what its parts are guarded to be."""
    guard_context.guard(source, GuardKind.TYPE_MATCH, slice)
    parts = {name: getattr(value, name) for name in ("start", "stop", "step")}
    wrapped = [
        guard_context.wrap_value(p, AttributeSource(source, name)) for name, p in parts.items()
    ]
    return slice(*wrapped)


def wrap_changing(
    guard_context: GuardContext, value: tuple[object, ...], source: Source
) -> tuple[object, ...] | None:
    """A tuple of numbers of which some changed between compiles (an optimizer's `betas` under a
    schedule of momentum, a `torch.Size` that is kept over a graph break), item by item; None for
    another one, which is guarded by value."""
    if not value or not _NUMBERS.issuperset(map(type, value)):
        return None
    places = [ItemSource(source, index) for index in range(len(value))]
    changed = [
        _changes(guard_context, item, place) for item, place in zip(value, places, strict=True)
    ]
    if not any(changed):
        return None
    cls = type(value)
    guard_context.guard(source, GuardKind.TYPE_MATCH, cls)
    guard_context.guard(source, GuardKind.LENGTH, len(value))
    made = cls(
        [guard_context.wrap_value(item, place) for place, item in zip(places, value, strict=True)]
    )
    guard_context.constants[id(made)] = made, source
    return made


_NUMBERS = frozenset({int, float})


def _changes(guard_context: GuardContext, item: Any, place: Source) -> bool:
    if type(item) is float:
        return bool(guard_context.sizes.is_lifted(place, item))
    return guard_context.sizes.number(place, item) is not None


def is_numpys_float(cls: type) -> bool:
    """Whether values are NumPy's floats of double precision, which are Python floats, too."""
    is_builtin = issubclass(cls, float) and not cls.__flags__ & _HEAP_TYPE
    return is_builtin and cls.__module__ == "numpy"


_HEAP_TYPE = 1 << 9


def wrap_by_value(guard_context: GuardContext, value: object, source: Source) -> object:
    """Take in something immutable, of which each call may bring another equal one."""
    guard_context.guard(source, GuardKind.EQUALS_MATCH, value)
    guard_context.constants.setdefault(id(value), (value, source))
    return value
