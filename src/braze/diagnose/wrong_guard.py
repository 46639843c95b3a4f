"""The guard that let an entry serve a call that it is not for.

What served the call is compared with what is compiled for it anew. Where both guard one place, and
expect other things there, the first one's guard should not have held; where only the new one guards
it, the first lacks the guard. What guards mean is not asked: that may be what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, final

from braze.frozen import frozen
from braze.ir.captured.guard import Guard, GuardKind
from braze.runtime.dispatch.cache_entries import FrameCache

# Guards whose expectations are data, which tell two calls from each other.
_TELLING = frozenset(
    {
        GuardKind.TENSOR_MATCH,
        GuardKind.ARRAY_MATCH,
        GuardKind.STORAGE_OFFSET,
        GuardKind.TYPE_MATCH,
        GuardKind.ID_MATCH,
        GuardKind.EQUALS_MATCH,
        GuardKind.COMPARES,
        GuardKind.LENGTH,
        GuardKind.ITEMS_LEFT,
        GuardKind.DICT_KEYS,
        GuardKind.DICT_CONTAINS,
        GuardKind.HAS_ATTRIBUTE,
    }
)


@final
@frozen(eq=False)
class WrongGuard:
    """before: the guard of what served the call; None where it lacks one. now: the guard of what is
    compiled for the call."""

    before: Guard | None
    now: Guard

    def __str__(self) -> str:
        expected = "nothing" if self.before is None else repr(self.before.expected)
        return f"{self.now.source} is guarded as {expected}, and is {self.now.expected!r} now"


def find_wrong_guard(
    served: Iterable[FrameCache], fresh: Iterable[FrameCache]
) -> WrongGuard | None:
    """The first wrong guard. served: of the callable that gave a wrong answer at its last call;
    fresh: of one that was compiled for that call. A guard that differs comes before one that
    lacks."""
    known = {(id(cache.code), cache.offset): cache for cache in served if cache.entries}
    lacking: WrongGuard | None = None
    for cache in fresh:
        before = known.get((id(cache.code), cache.offset))
        if before is None or not cache.entries:
            continue
        pairs = _pairs(before.entries[0].compiled.guards, cache.entries[0].compiled.guards)
        for wrong in pairs:
            if wrong.before is not None:
                return wrong
            lacking = lacking or wrong
    return lacking


# --- private ---------------------------------------------------------------------------------


def _pairs(served: Iterable[Guard], fresh: Iterable[Guard]) -> Iterator[WrongGuard]:
    known: dict[Any, Guard] = {(guard.source, guard.kind): guard for guard in served}
    for guard in fresh:
        if guard.kind not in _TELLING:
            continue
        before = known.get((guard.source, guard.kind))
        if before is None or _differ(before, guard):
            yield WrongGuard(before, guard)


def _differ(one: Guard, other: Guard) -> bool:
    if one.kind is GuardKind.ID_MATCH:  # objects of a copied module are others
        return _is_constant(one.expected) != _is_constant(other.expected) or (
            _is_constant(one.expected) and one.expected is not other.expected
        )
    return repr(one.expected) != repr(other.expected)


def _is_constant(value: object) -> bool:
    return value is None or type(value) is bool
