"""Programs that compile one function again and again, as `torch.compile(f)(x)` in a loop does.

    RECENT.find(f, key, make)   -> made
    RECENT.find(f, key, make)   -> the same dispatcher, with its entries, whoever dropped the result

What is compiled would go with the result of `braze.compile`; so the dispatchers of the functions
and modules that were compiled last are kept, each until its function goes. A dispatcher may refer
to its function (the rest of a frame behind a break does), so that neither goes by itself: only a
few are kept, and none of functions that close over something.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable
from typing import Any, final

from braze.compat.python.other_compilers import hide_from_other_compilers
from braze.locks import make_lock
from braze.runtime.dispatch.compiled_function import Dispatcher

_MOST_TARGETS = 64


@final
class RecentDispatchers:
    """Dispatchers by the identity of what was compiled, and by how."""

    def __init__(self, most: int = _MOST_TARGETS) -> None:
        self._most = most
        self._lock = make_lock()
        # The longest unused first. A function's id is its own while the reference lives.
        self._known: dict[int, tuple[weakref.ref[Any], dict[Hashable, Dispatcher]]] = {}

    def find(self, target: object, key: Hashable, make: Callable[[], Dispatcher]) -> Dispatcher:
        """The dispatcher that this target has for this key, made now if there is none."""
        with self._lock:
            place = id(target)
            forget = functools.partial(_forget, weakref.ref(self), place)
            known = self._known.pop(place, None)
            if known is None or known[0]() is not target:
                known = weakref.ref(target, forget), {}
            self._known[place] = known
            found = known[1].get(key)
            if found is None:
                found = known[1].setdefault(key, make())
            dropped = []
            while len(self._known) > self._most:
                dropped.append(self._known.pop(next(iter(self._known))))
        dropped.clear()  # without the lock: what goes may have finalizers
        return found

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            dropped, self._known = self._known, {}
        dropped.clear()


def _forget(
    table: Callable[[], RecentDispatchers | None], place: int, gone: weakref.ref[object]
) -> None:
    """A target is gone. Without the lock: it comes between any two instructions, and each step
    here is one of C's."""
    recent = table()
    known = None if recent is None else recent._known.get(place)
    if recent is not None and known is not None and known[0] is gone:
        recent._known.pop(place, None)


hide_from_other_compilers([_forget])  # it runs where the program drops a function
RECENT = RecentDispatchers()
