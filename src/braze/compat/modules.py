"""Where `torch.nn.Module` keeps its hooks."""

from __future__ import annotations

import torch
from torch.nn.modules import module as module_file

# Instance dictionaries that make `Module.__call__` do more than call `forward`.
INSTANCE_HOOKS = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
)
GLOBAL_HOOKS = (
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether calling the module does more than call its `forward`: instance or global hooks."""
    get = module.__dict__.get
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
