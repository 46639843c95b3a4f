"""What `braze.status()` says of one dispatcher, read while it may be at work in other threads."""

from __future__ import annotations

from collections.abc import Iterable

from braze.compile_records import BreakNote, CallableStatus
from braze.ir.captured.frame import Break
from braze.runtime.dispatch.cache_entries import CacheEntry
from braze.runtime.dispatch.compiled_function import Dispatcher


def status_of(dispatcher: Dispatcher) -> CallableStatus | None:
    """The counts of a compiled callable; None where the user has dropped it, or has called `reset`
    since and not it."""
    owners, tally = dispatcher.owners, dispatcher.tally
    calls = int(tally.calls)
    is_dropped = bool(owners) and all(owner() is None for owner in owners)
    if is_dropped or (dispatcher.was_reset and not calls):
        return None
    entries = dispatcher.compiled_entries()
    return CallableStatus(
        name=dispatcher.name,
        origin=dispatcher.place,
        calls=calls,
        graphs=sum(entry.compiled.operators > 0 for entry in entries),
        entries=len(entries),
        breaks=_breaks(entries),
        times_broken=int(tally.broken),
        left_to_eager=tally.left(),
        recompiles=int(tally.recompiles),
        last_recompile=tally.last_recompile,
        eager_kernels=tuple(
            dict.fromkeys([text for entry in entries for text in entry.compiled.fallbacks])
        ),
    )


def _breaks(entries: Iterable[CacheEntry]) -> tuple[BreakNote, ...]:
    """The graph breaks that end these entries, each once."""
    exits = [entry.compiled.exit for entry in entries]
    reasons = [end.reason for end in exits if isinstance(end, Break)]
    notes = [BreakNote(why.code, why.reason, why.hint, str(why.origin)) for why in reasons]
    return tuple(dict.fromkeys(notes))
