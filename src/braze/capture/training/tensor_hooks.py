"""Hooks on the gradients of inputs: `x.register_hook(f)`, which stay behind the frame.

    handle = x.register_hook(f)     after the graph ran: handle = Tensor.register_hook(x, f)
    handle.remove()                 before that: nothing is registered

A hook is called by backwards that come after it was registered, whether what they go through was
computed before or after that. So it may be registered when the graph ran, if no backward runs in
the frame. Refused, by a break at the registration: tensors that the frame writes to or whose need
of gradients it changes, and frames with a backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch
from torch.utils.hooks import RemovableHandle

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import CannotRebuild
from braze.frozen import frozen
from braze.ir.captured.frame import NewCall
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.capture.exit.reconstruction import Reconstructor
    from braze.capture.interpreter import Interpreter

_PLAIN = (torch.Tensor, torch.nn.Parameter)


@final
@frozen(eq=False)
class TensorHook:
    """One registration: `function(tensor, hook)` is called when the graph ran."""

    handle: RemovableHandle
    function: Any
    tensor: Any
    hook: Any
    step: int


@final
class TensorHooks:
    """The registrations of one frame, by the identity of the handle. removed: those that were
    removed again."""

    def __init__(self) -> None:
        self.made: dict[int, TensorHook] = {}
        self.removed: dict[int, TensorHook] = {}

    def left(self, handle: RemovableHandle) -> TensorHook | None:
        """The registration that a handle is of; None where there is none, or it was removed."""
        return None if id(handle) in self.removed else self.made.get(id(handle))


def may_register_later(interpreter: Interpreter, tensor: object, leaf: bool) -> bool:
    """Whether a hook may be put on a tensor behind the graph. leaf: only if it is a leaf."""
    if type(tensor) is not TracedTensor or interpreter.transforms:
        return False
    real = interpreter.tracer.real_of(tensor)
    if real is None or not real.requires_grad or interpreter.backwards:
        return False
    return interpreter.guard_context.type_of(tensor) in _PLAIN and (real.is_leaf or not leaf)


def register_later(
    interpreter: Interpreter, function: Any, tensor: Any, hook: Any
) -> RemovableHandle:
    """The handle of a hook that is registered behind the graph. Its number is not known before, so
    the handle has no attributes."""
    handle = object.__new__(RemovableHandle)
    made = TensorHook(handle, function, tensor, hook, interpreter.outer_step)
    interpreter.tensor_hooks.made[id(handle)] = made
    interpreter.deferred_calls.append((_registered, (handle,)))
    return handle


def _registered(handle: RemovableHandle) -> None:
    """Nothing: that the handle is an argument has made it."""


@answers(RemovableHandle.remove)
def remove(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """`handle.remove()`, which may come several times."""
    (handle,) = args
    hooks = interpreter.tensor_hooks
    if id(handle) in hooks.made:
        hooks.removed[id(handle)] = hooks.made[id(handle)]
    else:
        interpreter.call_python(RemovableHandle.remove, args, kwargs)


def tensor_hook_recipe(
    interpreter: Interpreter, handle: RemovableHandle, writer: Reconstructor
) -> NewCall | None:
    """The call that registers a hook and gives its handle; None for other handles, and for hooks
    that were removed again."""
    found = interpreter.tensor_hooks.left(handle)
    if found is None:
        return None
    return NewCall(found.function, writer.recipes((found.tensor, found.hook)))


def check_tensor_hooks(interpreter: Interpreter) -> None:
    """CannotRebuild where it would be seen that a hook comes behind the graph."""
    guard_context = interpreter.guard_context
    for found in interpreter.tensor_hooks.made.values():
        place = found.tensor.place
        changed = guard_context.new_leaves.keys() | guard_context.switched.keys()
        written = (place.base or place).version or id(found.tensor) in changed
        is_left = interpreter.tensor_hooks.left(found.handle) is not None
        if interpreter.backwards or (written and is_left):
            raise CannotRebuild("it would be seen that it comes late", found.step, "gradient-hook")
