"""Hooks of modules that the program registers and removes in one frame: they are its own.

A hook is kept in a dict of its module's under a number that the process counts up at each
registration, so where a hook stays, the dict has another key at each call, which no entry can
write: then the graph breaks where it was registered, and it is done for real. A number of a hook
that is gone when the frame ends nobody sees: it is one that no real hook has.
"""

from __future__ import annotations

import collections
import weakref
from typing import TYPE_CHECKING

from torch.utils.hooks import RemovableHandle

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested, CannotRebuild
from braze.capture.state.side_effects import DELETED
from braze.ir.captured.frame import NewCall
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_CODE = "hook-registration"


@answers(RemovableHandle)
def register_hook(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> RemovableHandle:
    """`RemovableHandle(hooks, extra_dict=others)`: what `register_forward_hook()` and its like give
    back."""
    others = kwargs.get("extra_dict")
    others = others if isinstance(others, list) else [] if others is None else [others]
    dicts = [*args, *others]
    known = interpreter.guard_context.known
    if len(args) != 1 or not all(id(hooks) in known for hooks in dicts):
        raise BreakRequested(_CODE, "RemovableHandle()")
    references = [weakref.ref(interpreter.side_effects.original(hooks)) for hooks in dicts]
    handle = object.__new__(RemovableHandle)
    handle.hooks_dict_ref, *rest = references
    handle.extra_dict_ref = tuple(rest)
    handle.id = -1 - len(interpreter.handles)
    interpreter.handles[id(handle)] = (handle, interpreter.outer_step)
    return handle


def check_handles(interpreter: Interpreter) -> None:
    """CannotRebuild where the frame leaves a hook registered."""
    for handle, step in interpreter.handles.values():
        for reference in (handle.hooks_dict_ref, *handle.extra_dict_ref):
            found = interpreter.side_effects.written(reference(), handle.id)
            if found is not ABSENT and found is not DELETED:
                raise CannotRebuild("RemovableHandle()", step, _CODE)


def handle_recipe(interpreter: Interpreter, handle: RemovableHandle) -> NewCall | None:
    """A handle of a hook that is gone; None for one that was made elsewhere."""
    gone = id(handle) in interpreter.handles or id(handle) in interpreter.tensor_hooks.removed
    return NewCall(_used_handle, ()) if gone else None


def _used_handle() -> RemovableHandle:
    """A handle whose `remove()` does nothing."""
    return RemovableHandle(collections.OrderedDict())
