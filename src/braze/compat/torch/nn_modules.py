"""Where `torch.nn.Module` keeps its hooks, and the functions that run them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as module_file
from torch.utils.hooks import BackwardHook

from braze.compat import private_names as private

# Instance dictionaries that make `Module.__call__` do more than call `forward`.
INSTANCE_HOOKS = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
)
# Their like for all modules together, in the module's file.
GLOBAL_HOOKS = tuple([f"_global{name}" for name in INSTANCE_HOOKS])
# What puts nodes with hooks around a module's forward, where gradients flow.
BACKWARD_HOOK_SETUPS = (BackwardHook.setup_input_hook, BackwardHook.setup_output_hook)
CALL_WITH_HOOKS = "_call_impl"
MODULE_CALL: Any = private.module_call
MODULE_CALLS = frozenset({private.wrapped_module_call, MODULE_CALL})
# What `nn.Module.compile` puts on a module, and `nn.Module.__call__` calls instead of MODULE_CALL.
_COMPILED_CALL = "_compiled_call_impl"


def instance_hooks(attributes: dict[str, object]) -> list[str]:
    """The names of the dictionaries that hold hooks, in a module's `__dict__`."""
    return [name for name in INSTANCE_HOOKS if attributes.get(name)]


def global_hooks() -> list[dict[int, object]]:
    """The dictionaries that hold the hooks for all modules."""
    return [getattr(module_file, name) for name in GLOBAL_HOOKS]


def has_global_hooks() -> bool:
    """Whether a hook for all modules is registered."""
    return any(global_hooks())


def has_hooks(attributes: dict[str, object]) -> bool:
    """Whether calling a module does more than call its `forward`, by its `__dict__`: instance or
    global hooks."""
    get = attributes.get
    # In full: a loop takes a microsecond of every call.
    return bool(
        get("_forward_hooks")
        or get("_forward_pre_hooks")
        or get("_backward_hooks")
        or get("_backward_pre_hooks")
        or module_file._global_forward_hooks
        or module_file._global_forward_pre_hooks
        or module_file._global_backward_hooks
        or module_file._global_backward_pre_hooks
    )


class ForwardHooks(NamedTuple):
    """Attributes of a module that hold its hooks around `forward`, by number, and the numbers of
    those that take keyword arguments, or that are called when `forward` raises, too."""

    before: str = "_forward_pre_hooks"
    behind: str = "_forward_hooks"
    before_with_keywords: str = "_forward_pre_hooks_with_kwargs"
    behind_with_keywords: str = "_forward_hooks_with_kwargs"
    always: str = "_forward_hooks_always_called"


FORWARD_HOOKS = ForwardHooks()


def hooks_of_forward(module: torch.nn.Module) -> list[object] | None:
    """The hooks that a call of a module runs around `forward`. None where it runs others, too: for
    all modules, of the backward, or when `forward` raises."""
    space = module.__dict__
    others = space.get("_backward_hooks") or space.get("_backward_pre_hooks")
    if others or has_global_hooks() or space.get(FORWARD_HOOKS.always):
        return None
    before, behind = space.get(FORWARD_HOOKS.before), space.get(FORWARD_HOOKS.behind)
    return [*(before or {}).values(), *(behind or {}).values()]


def compiled_call(module: torch.nn.Module) -> object:
    """What a call of the module calls instead of the module's own; None where it is not compiled in
    place. Copies and pickles of a module do not have it."""
    return module.__dict__.get(_COMPILED_CALL)


def set_compiled_call(module: torch.nn.Module, call: object) -> None:
    """Let calls of the module call this, or its own again for None."""
    if call is None:
        module.__dict__.pop(_COMPILED_CALL, None)
    else:
        module.__dict__[_COMPILED_CALL] = call


def called_module(method: Any) -> torch.nn.Module | None:
    """The module of which a bound method is the call below hooks, which `nn.Module.compile` has
    compiled; None of any other method."""
    module = method.__self__
    is_call = isinstance(module, torch.nn.Module) and method.__func__ is module_call(module)
    return module if is_call else None


def module_call(module: torch.nn.Module) -> Any:
    """The function that calls a module with its hooks, whether it is compiled in place or not."""
    return getattr(type(module), CALL_WITH_HOOKS)


def is_parameter(value: object) -> bool:
    """isinstance(value, torch.nn.Parameter), by what its metaclass looks at."""
    cls = type(value)
    if cls is torch.nn.Parameter or getattr(value, "_is_param", False):
        return True
    return cls is not torch.Tensor and isinstance(value, torch.nn.Parameter)
