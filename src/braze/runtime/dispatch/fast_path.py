"""The way through a compiled function in C++, for calls that a snapshot proves.

    answer = entrance(args, kwargs)
    UNKNOWN             no snapshot of the first entry proves the call: Python looks for an entry
    Undone(entry, f)    the graph raised f, before anything was written
    anything else       what the call returns

From the arguments to the graph, and from its results to the caller, no Python code runs: a call of
a small function costs the host half of what it does by way of `FrameCache.find`.
"""

from __future__ import annotations

import inspect
import types
from array import array
from collections.abc import Callable
from typing import Any, Final, final

from braze.ir.captured.compile_request import FrameValues
from braze.runtime.dispatch.cache_entries import CacheEntry, FrameCache
from braze.runtime.guards.native_extension import LOADER, NativeLoader
from braze.runtime.guards.snapshot_cache import SnapshotMemory

Entrance = Callable[[tuple[Any, ...], dict[str, Any]], Any]


@final
class Undone:
    """A call that was not made. entry: whose graph raised `fault`; None: no entry was found."""

    __slots__ = ("entry", "fault")

    def __init__(self, entry: CacheEntry | None = None, fault: Exception | None = None) -> None:
        self.entry = entry
        self.fault = fault


UNKNOWN: Final = Undone()


def make_entrance(
    function: types.FunctionType,
    cache: FrameCache,
    calls: array[int],
    loader: NativeLoader = LOADER,
) -> Entrance | None:
    """That of a function whose entries are in the cache; None until the extension is loaded.

    calls: one signed 64-bit number, to which each call that is not UNKNOWN adds one.
    """
    native = loader.loaded
    if native is None:
        return None
    code = function.__code__
    positional, keyword = code.co_argcount, code.co_kwonlyargcount
    has_rest = bool(code.co_flags & inspect.CO_VARARGS)
    has_more = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: positional + keyword + has_rest + has_more]
    form = (positional, code.co_posonlyargcount, keyword, has_rest, has_more)
    made: Entrance = native.entrance(
        function, (*names, *code.co_freevars), form, cache, UNKNOWN, FrameValues, _SLOTS, calls
    )
    return made


# --- private ---------------------------------------------------------------------------------

# What is read and filled in memory, in the order of guard_entrance.cpp.
_SLOTS = (
    FrameCache.__dict__["entries"],
    *[CacheEntry.__dict__[name] for name in ("is_plain", "graph", "replay", "result", "memory")],
    SnapshotMemory.__dict__["checks"],
    *[FrameValues.__dict__[name] for name in ("locals", "stack", "globals")],
    *[Undone.__dict__[name] for name in ("entry", "fault")],
)
