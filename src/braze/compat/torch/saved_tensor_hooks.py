"""Hooks on saved tensors that a program has put around a call: which of them a graph can serve.

A graph saves other tensors than the program's operators do, so hooks would be shown other ones, and
what they change would change other gradients. Hooks that give back what they were given, and show
it to nobody, are served all the same: those of `torch.utils.checkpoint` and `save_on_cpu`.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

from torch.autograd.graph import save_on_cpu

from braze.compat import private_names as private
from braze.compat.torch.autograd_engine import saved_hooks
from braze.compat.torch.dynamo_interop import is_compiler_function


def _hooks_made_by(cls: type) -> frozenset[types.CodeType]:
    """The code of functions that a class's `__init__` makes."""
    code = getattr(inspect.getattr_static(cls, "__init__"), "__code__", None)
    made = () if code is None else code.co_consts
    return frozenset(filter(lambda constant: type(constant) is types.CodeType, made))


_OF_CHECKPOINTS = _hooks_made_by(private.checkpoint_hook) | _hooks_made_by(
    private.recomputation_hook
)
_OF_TORCH = _OF_CHECKPOINTS | _hooks_made_by(save_on_cpu)
# What sets, for all that is saved from then on, what becomes of it.
SET_SAVED_HOOKS: tuple[Any, ...] = (
    private.push_saved_hooks,
    private.pop_saved_hooks,
)


def are_of_torch(hooks: tuple[object, object]) -> bool:
    """Whether both of a pair of hooks are torch's own: what one keeps the other gives back."""
    return all(_code_of(hook) in _OF_TORCH for hook in hooks)


def is_in_checkpoint() -> bool:
    """Whether `torch.utils.checkpoint` is calling its function, or calls it once more."""
    hooks = saved_hooks()
    return hooks is not None and _code_of(hooks[0]) in _OF_CHECKPOINTS


def checkpoint_in_force() -> tuple[object, object] | None:
    """The frame of the `torch.utils.checkpoint` whose function the thread calls, and what numbers
    the recomputation; None for that of the forward."""
    hooks = saved_hooks()
    if hooks is None or _code_of(hooks[0]) not in _OF_CHECKPOINTS:
        return None
    pack = _undecorated(hooks[0])
    names = zip(pack.__code__.co_freevars, pack.__closure__, strict=True)
    held = {name: cell.cell_contents for name, cell in names}
    if "frame" in held:
        return held["frame"], None
    frame = held["target_frame_ref"]()
    return None if frame is None else (frame, held["gid"])


def saved_count(frame: Any, recomputation: Any) -> int:
    """How many tensors a checkpoint's forward has saved, or this recomputation of it."""
    if recomputation is None:
        return len(frame.weak_holders)
    return int(frame.recomp_counter[recomputation])


def shows_saved_tensors() -> bool:
    """Whether a program's own hooks are in force in the thread."""
    hooks = saved_hooks()
    return hooks is not None and not are_of_torch(hooks)


def raised_by_hooks(problem: BaseException) -> bool:
    """Whether an exception came out of the hooks in force: it is for whoever set them."""
    hooks = saved_hooks()
    if hooks is None:
        return False
    codes = {_code_of(hook) for hook in hooks}
    place = problem.__traceback__
    while place is not None:
        if place.tb_frame.f_code in codes:
            return True
        place = place.tb_next
    return False


def _code_of(hook: object) -> object:
    return getattr(_undecorated(hook), "__code__", None)


def _undecorated(hook: object) -> Any:
    """A hook itself: one of the checkpoint's is wrapped by torch's own compiler."""
    if type(hook) is types.FunctionType and is_compiler_function(hook):
        return getattr(hook, "__wrapped__", hook)
    return hook
