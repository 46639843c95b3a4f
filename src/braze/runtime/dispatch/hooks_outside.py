"""Module hooks that `disable()` leaves out, called around the compiled forward.

    compiled(x)      pre-forward hooks, eagerly
                     forward, compiled: one graph
                     forward hooks, eagerly

FSDP2 gathers a module's parameters in such a hook, and lets go of them in another. Inside of the
frame each of them breaks the graph: a block of one graph becomes five pieces, each with guards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from braze.compat import private_names as private
from braze.compat.torch.dynamo_interop import disables_what_it_wraps, is_disabled_by_torch
from braze.compat.torch.nn_modules import FORWARD_HOOKS, hooks_of_forward
from braze.marks import MARKS, Mark
from braze.runtime.dispatch.tracebacks import without_driver_frames

Call = Callable[..., Any]


def runs_hooks_outside(module: torch.nn.Module) -> bool:
    """Whether a hook of a module is left out of graphs, and all that a call of the module does is
    to call `forward` and hooks around it."""
    hooks = hooks_of_forward(module)
    if hooks is None or private.jit_trace() is not None:
        return False
    return any(map(_is_left_out, hooks))


def _is_left_out(hook: object) -> bool:
    function = getattr(hook, "__func__", hook)
    if MARKS.of(function) is Mark.DISABLE:
        return True
    return is_disabled_by_torch(function) or disables_what_it_wraps(function)


def call_between_hooks(
    module: torch.nn.Module,
    compiled_forward: Call,
    compile_callee: Callable[[Any], Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> object:
    """A call of a module for which `runs_hooks_outside` holds: what `nn.Module.__call__` does.

    compiled_forward: called with the module first.
    compile_callee: gives what to call instead of a hook that is not left out.
    """
    try:
        for number, hook in _registered(module, FORWARD_HOOKS.before):
            called = hook if _is_left_out(hook) else compile_callee(hook)
            if number in getattr(module, FORWARD_HOOKS.before_with_keywords):
                args, kwargs = _both(called(module, args, kwargs), args, kwargs)
            else:
                changed = called(module, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
        result = compiled_forward(module, *args, **kwargs)
        for number, hook in _registered(module, FORWARD_HOOKS.behind):
            called = hook if _is_left_out(hook) else compile_callee(hook)
            with_keywords = number in getattr(module, FORWARD_HOOKS.behind_with_keywords)
            given = (args, kwargs, result) if with_keywords else (args, result)
            changed = called(module, *given)
            if changed is not None:
                result = changed
    except BaseException as exception:
        raise without_driver_frames(exception)  # noqa: B904 - the same exception
    return result


def _registered(module: torch.nn.Module, name: str) -> tuple[tuple[int, Any], ...]:
    """Hooks in the order of their calls; one that another adds or removes counts next time."""
    return tuple(getattr(module, name).items())


def _both(
    changed: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that a pre-forward hook with keywords leaves."""
    if changed is None:
        return args, kwargs
    if isinstance(changed, tuple) and len(changed) == 2:
        return changed
    raise RuntimeError(
        "forward pre-hook must return None or a tuple "
        f"of (new_args, new_kwargs), but got {changed}."
    )
