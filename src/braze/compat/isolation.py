"""What a compile changes of its thread and process while it runs, and how all of it is put back.

An exception (KeyboardInterrupt) may come out of any line, those of `finally` clauses and of
`__exit__` methods included. So everything is put back twice: what interrupts the first time cannot
interrupt the second, which does what is left. Putting back what is in place already does nothing.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, final

import torch

from braze.compat.ambient import AmbientState, ambient_state, autocast_depth, set_ambient_state
from braze.compat.dispatch import dispatch_mode_count, pop_dispatch_mode

_Result = TypeVar("_Result")

# The hooks that each tensor saved for a backward gets, the innermost pair; None: none are set.
# While there are any, autograd does not look whether a saved tensor was written to.
_saving_hooks: Callable[[], tuple[Any, Any] | None] = functools.partial(
    torch._C._autograd._top_saved_tensors_default_hooks, False
)
_pop_saving_hooks: Callable[[], None] = torch._C._autograd._pop_saved_tensors_default_hooks
# Why such hooks may not be set; None: they may.
_saving_refusal: Callable[[], str | None] = (
    torch._C._autograd._saved_tensors_hooks_get_disabled_error_message
)
# How many transforms (`vmap`, `grad`, `jvp`) are active, and the way back to so many.
_transform_depth: Callable[[], int] = torch._C._functorch.get_dynamic_layer_stack_depth
_undo_transforms: Callable[[int], None] = (
    torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth
)


@final
class _ThreadState(NamedTuple):
    ambient: AmbientState
    autocast_depth: int
    profile: Any
    dispatch_modes: int
    saving_hooks: tuple[Any, Any] | None
    saving_refusal: str | None
    transforms: int


@final
class _CollectorPauses:
    """Who wants the garbage collector off; the last one that ends turns it on again."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders: set[object] = set()
        self.was_enabled = False

    def begin(self, holder: object) -> None:
        with self.lock:
            if not self.holders:
                self.was_enabled = gc.isenabled()
            self.holders.add(holder)
            gc.disable()

    def end(self, holder: object) -> None:
        with self.lock:
            if self.holders == {holder} and self.was_enabled:
                gc.enable()
            self.holders.discard(holder)


_PAUSES = _CollectorPauses()


def run_isolated(function: Callable[[], _Result]) -> _Result:
    """The result of a call that leaves this thread's state as it was, whichever way it ends.

    Nor does an automatic garbage collection happen meanwhile: compiling makes many objects that
    live, and a full collection walks the user's whole program (180 ms with a model library
    loaded).
    """
    before = _ThreadState(
        ambient_state(),
        autocast_depth(),
        sys.getprofile(),
        dispatch_mode_count(),
        _saving_hooks(),
        _saving_refusal(),
        _transform_depth(),
    )
    try:
        return without_collection(function)
    finally:
        try:
            _put_back(before)
        finally:
            _put_back(before)


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


def _put_back(before: _ThreadState) -> None:
    if sys.getprofile() is not before.profile:
        sys.setprofile(before.profile)
    while dispatch_mode_count() > before.dispatch_modes:
        pop_dispatch_mode(None)
    if _transform_depth() > before.transforms:
        _undo_transforms(before.transforms)
    while _saving_hooks() not in (None, before.saving_hooks):
        _pop_saving_hooks()
    if _saving_refusal() != before.saving_refusal:
        _set_saving_refusal(before.saving_refusal)
    deeper = before.autocast_depth - autocast_depth()
    if deeper or ambient_state() != before.ambient:
        set_ambient_state(before.ambient, deeper)


def _set_saving_refusal(reason: str | None) -> None:
    if reason is None:
        torch._C._autograd._saved_tensors_hooks_enable()
    else:
        torch._C._autograd._saved_tensors_hooks_disable(reason)
