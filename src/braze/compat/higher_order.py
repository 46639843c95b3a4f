"""torch's operators that take functions (`while_loop`, `map`, `scan`, flex attention): what each
does with them in eager, as Python that can be interpreted."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph_placeholder
from torch._ops import HigherOrderOperator

# What functions marked by torch.compiler.nested_compile_region call, with the function first. In
# eager it calls that function; where it is told that a compiler is at work, it raises.
CALL_REGION: Any = invoke_subgraph_placeholder


def python_of(operator: Any) -> types.FunctionType | None:
    """The function that runs an operator in eager; None if it is no such operator, or has none."""
    if not isinstance(operator, HigherOrderOperator):
        return None
    found = operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    return found if type(found) is types.FunctionType else None
