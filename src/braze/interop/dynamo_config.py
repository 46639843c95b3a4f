"""What a program set on `torch._dynamo.config` for the compiles that `braze.install` takes over."""

from __future__ import annotations

import sys
from collections.abc import Mapping

# Settings that mean something to Braze -> the value that torch.compile begins with.
_DEFAULTS: Mapping[str, object] = {
    "assume_static_by_default": True,
    "automatic_dynamic_shapes": True,
    "capture_dynamic_output_shape_ops": False,
    "capture_scalar_outputs": False,
    "disable": False,
    "dynamic_shapes": True,
    "error_on_recompile": False,
    "fail_on_recompile_limit_hit": False,
    "recompile_limit": 8,
    "trace_numpy": True,
    "verbose": False,
}


def settings_of_dynamo() -> dict[str, object]:
    """The settings that are not as torch.compile begins; none where it was never loaded."""
    module = sys.modules.get("torch._dynamo.config")
    if module is None:
        return {}
    found = {name: getattr(module, name, usual) for name, usual in _DEFAULTS.items()}
    changed = {name: value for name, value in found.items() if value != _DEFAULTS[name]}
    functions = getattr(module, "reorderable_logging_functions", ())
    return changed | ({"reorderable_logging_functions": tuple(functions)} if functions else {})
