"""torch.nn.modules.module: where a module's hooks and the global hooks are kept."""

from __future__ import annotations

from typing import Any

import torch.nn.modules.module as nn_module

HOOK_DICT_NAMES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def global_hook_dicts() -> tuple[dict[int, Any], ...]:
    """The hooks that every module runs: pre-forward, forward, pre-backward, backward."""
    return (
        nn_module._global_forward_pre_hooks,
        nn_module._global_forward_hooks,
        nn_module._global_backward_pre_hooks,
        nn_module._global_backward_hooks,
    )


MODULE_CALLS = frozenset({nn_module.Module._wrapped_call_impl, nn_module.Module._call_impl})
