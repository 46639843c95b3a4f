"""torch's operators that take functions (`while_loop`, `map`, `scan`, flex attention, a region
under `no_grad` or autocast): what each does with them in eager, as Python for the interpreter."""

from __future__ import annotations

import types
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from braze.compat import private_names as private

# What functions marked by torch.compiler.nested_compile_region call, with the function first. In
# eager it calls that function; where it is told that a compiler is at work, it raises.
CALL_REGION: Any = private.invoke_subgraph_placeholder


def python_of(operator: Any) -> types.FunctionType | None:
    """The function that runs an operator in eager; None if it is no such operator, or has none."""
    if not issubclass(type(operator), private.HigherOrderOperator):
        return None
    found = operator.py_kernels.get(private.DispatchKey.CompositeExplicitAutograd)
    if type(found) is types.FunctionType:
        return found
    region = _REGIONS.get(operator.name())
    return region if type(region) is types.FunctionType else None


def _with_grad_mode(enabled: bool, body: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.set_grad_enabled(enabled):
        return body(*args, **kwargs)


def _with_autocast(
    device_type: str,
    dtype: torch.dtype | None,
    enabled: bool,
    cache_enabled: bool | None,
    body: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    with torch.autocast(device_type, dtype, enabled, cache_enabled):
        return body(*args, **kwargs)


def _checkpointed(body: Any, *args: Any, **kwargs: Any) -> Any:
    return checkpoint(body, *args, **{"use_reentrant": False, **kwargs})


# Regions that PyTorch's capture makes of context managers, by the operators' names: those of their
# classes' own `__call__`, which hides the body from compilers.
_REGIONS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {
        "wrap_with_set_grad_enabled": _with_grad_mode,
        "wrap_with_autocast": _with_autocast,
        "tag_activation_checkpoint": _checkpointed,
    }
)

# What the operator of `torch.cond` runs in eager.
COND: Any = python_of(torch.ops.higher_order.cond)
