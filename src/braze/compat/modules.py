"""Where `torch.nn.Module` keeps its hooks, and the functions that run them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules import module as module_file
from torch.utils.hooks import BackwardHook

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
MODULE_CALL = torch.nn.Module._call_impl
MODULE_CALLS = frozenset({torch.nn.Module._wrapped_call_impl, MODULE_CALL})


def instance_hooks(attributes: dict[str, Any]) -> list[str]:
    """The names of the dictionaries that hold hooks, in a module's `__dict__`."""
    return [name for name in INSTANCE_HOOKS if attributes.get(name)]


def global_hooks() -> list[dict[int, Any]]:
    """The dictionaries that hold the hooks for all modules."""
    return [getattr(module_file, name) for name in GLOBAL_HOOKS]


def has_global_hooks() -> bool:
    """Whether a hook for all modules is registered."""
    return any(global_hooks())


def has_hooks(attributes: dict[str, Any]) -> bool:
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


def is_parameter(value: Any) -> bool:
    """isinstance(value, torch.nn.Parameter), by what its metaclass looks at."""
    cls = type(value)
    if cls is torch.nn.Parameter or getattr(value, "_is_param", False):
        return True
    return cls is not torch.Tensor and isinstance(value, torch.nn.Parameter)
