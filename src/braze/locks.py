"""Locks that nothing can leave taken for ever.

A child that is forked while another thread holds a lock has no such thread to give it back. Code
that comes between any two instructions (a finalizer, a handler of a signal) may ask for what the
thread holds already. So locks here are re-entrant, and are free in a child, but for those of the
thread that forked.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, final


@final
class _Locks:
    """Every lock of the process, and what else a child begins with."""

    def __init__(self) -> None:
        self._locks: weakref.WeakSet[Any] = weakref.WeakSet()
        self._resets: list[Callable[[], None]] = []

    def make(self) -> threading.RLock:
        """A new lock."""
        lock = threading.RLock()
        self._locks.add(lock)
        return lock

    def at_fork(self, reset: Callable[[], None]) -> Callable[[], None]:
        """Have this called in a child, when its locks are free."""
        self._resets.append(reset)
        return reset

    def free(self) -> None:
        """In a child: free what other threads held, which are not there."""
        for lock in list(self._locks):
            if not lock._is_owned():
                lock._at_fork_reinit()
        for reset in self._resets:
            reset()


_LOCKS = _Locks()
make_lock = _LOCKS.make
call_in_children = _LOCKS.at_fork

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_LOCKS.free)
