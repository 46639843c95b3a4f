"""What a compile changes of its thread and process while it runs, and how all of it is put back.

An exception (KeyboardInterrupt) may come out of any line, those of `finally` clauses and of
`__exit__` methods included. So everything is put back twice: what interrupts the first time cannot
interrupt the second, which does what is left. Putting back what is in place already does nothing.
"""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, final

from braze.compat.python.signal_handlers import unwrap_handlers, wrap_handlers
from braze.compat.torch.ambient_state import (
    AmbientState,
    ambient_state,
    autocast_depth,
    set_ambient_state,
)
from braze.compat.torch.autograd_engine import pop_saved_hooks, saved_hooks, silence_saved_hooks
from braze.compat.torch.dispatcher import dispatch_mode_count, pop_dispatch_mode
from braze.compat.torch.functorch import TransformLevels, leave_transforms, transform_levels
from braze.errors import Interrupted
from braze.locks import call_in_children, make_lock

_Result = TypeVar("_Result")

_MANY_OBJECTS = 10_000
# Python 3.12 itself freezes 375 objects as it starts; a program that freezes its own has far more.
_FEW_FROZEN = 1_000


@final
class _ThreadState(NamedTuple):
    ambient: AmbientState
    autocast_depth: int
    profile: Any
    dispatch_modes: int
    saved_hooks: tuple[Any, Any] | None
    transforms: TransformLevels


def _thread_state() -> _ThreadState:
    return _ThreadState(
        ambient_state(),
        autocast_depth(),
        sys.getprofile(),
        dispatch_mode_count(),
        saved_hooks(),
        transform_levels(),
    )


@final
class _CollectorPauses:
    """Who wants the garbage collector off; the last one that ends turns it on again."""

    def __init__(self) -> None:
        self.lock = make_lock()
        self.holders: dict[object, int] = {}  # each with its thread
        self.was_enabled = False

    def begin(self, holder: object) -> None:
        with self.lock:
            if not self.holders:
                self.was_enabled = gc.isenabled()
            self.holders[holder] = threading.get_ident()
            gc.disable()

    def end(self, holder: object) -> None:
        with self.lock:
            is_last = [*self.holders] == [holder] and self.was_enabled
        if is_last:
            _age_young_objects()
        with self.lock:
            if [*self.holders] == [holder] and self.was_enabled:
                gc.enable()
            self.holders.pop(holder, None)

    def forget_others(self) -> None:
        """In a child, whose only thread is this one."""
        here = threading.get_ident()
        self.holders = {h: thread for h, thread in self.holders.items() if thread == here}
        if not self.holders and self.was_enabled:
            gc.enable()


_PAUSES = _CollectorPauses()
call_in_children(_PAUSES.forget_others)


def run_isolated(function: Callable[[], _Result], keeps_interrupts: bool = False) -> _Result:
    """The result of a call that leaves this thread's state as it was, whichever way it ends.

    keeps_interrupts: what a handler of a signal raised meanwhile comes out as Interrupted.

    Nor does an automatic garbage collection happen meanwhile: compiling makes many objects that
    live, and a full collection walks the user's whole program (180 ms with a model library
    loaded). The program's hooks on saved tensors see no fake tensors.
    """
    before = _thread_state()
    were_silent = False
    handlers: dict[int, Any] = {}
    try:
        handlers = wrap_handlers()
        were_silent = silence_saved_hooks(True)
        return without_collection(function)
    except BaseException as ending:
        try:
            _leave_levels(ending, before)
        finally:
            _leave_levels(ending, before)
        if isinstance(ending, Interrupted) and not keeps_interrupts:
            raise ending.exception from None
        raise
    finally:
        try:
            _put_back(before, were_silent)
        finally:
            unwrap_handlers(handlers)
            _put_back(before, were_silent)
            unwrap_handlers(handlers)


def without_collection(function: Callable[[], _Result]) -> _Result:
    """The result of a call during which no automatic garbage collection happens."""
    holder = object()
    try:
        _PAUSES.begin(holder)
        return function()
    finally:
        try:
            _PAUSES.end(holder)
        finally:
            _PAUSES.end(holder)


def _age_young_objects() -> None:
    """Many new objects that live go straight to the collector's oldest generation.

    A full collection is due when the objects that came there by younger ones exceed a quarter of
    all: those of one large compile do, and some call of the program, much later, would take a third
    of a second. What is garbage already goes now. Where a program froze objects nothing is done:
    they could not be told from these.
    """
    if gc.get_count()[0] < _MANY_OBJECTS or gc.get_freeze_count() > _FEW_FROZEN:
        return
    gc.collect(0)
    gc.freeze()
    gc.unfreeze()


def _leave_levels(ending: BaseException, before: _ThreadState) -> None:
    if not isinstance(ending, Exception):
        # A manager that was interrupted as it was entered is held by a frame of the traceback. It
        # would leave its level later: one that is not its own.
        traceback.clear_frames(ending.__traceback__)
    leave_transforms(before.transforms)


def _put_back(before: _ThreadState, were_silent: bool) -> None:
    silence_saved_hooks(were_silent)
    pop_saved_hooks(before.saved_hooks)
    if sys.getprofile() is not before.profile:
        sys.setprofile(before.profile)
    while dispatch_mode_count() > before.dispatch_modes:
        pop_dispatch_mode(None)
    deeper = before.autocast_depth - autocast_depth()
    if deeper or ambient_state() != before.ambient:
        set_ambient_state(before.ambient, deeper)
