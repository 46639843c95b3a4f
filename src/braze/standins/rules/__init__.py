"""Result types of operators from argument types, without running anything.

`infer(op, args, kwargs)` takes what the operator takes, with `TensorType` in place of tensors, and
returns what it returns, likewise. A rule is written for what is called most; the rest is asked of
the operator's meta kernel. A rule returns NotImplemented for arguments that it does not cover.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.standins.meta import infer_by_meta, infer_view_by_meta
from braze.ir.types import TensorType
from braze.standins.rules.table import RULES, VIEW_RULES


def infer(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator's result with TensorType in place of tensors.

    Raises what eager raises for arguments that do not fit; Untraceable where nothing is known.
    """
    rule = RULES.get(op)
    if rule is not None:
        result = rule(*args, **kwargs)
        if result is not NotImplemented:
            return result
    return infer_by_meta(op, args, kwargs)


def infer_view(
    op: torch._ops.OpOverload,
    viewed: TensorType,
    offset: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """(type, storage offset) of a view of memory at `offset`; a tuple of those where the operator
    returns several views."""
    rule = VIEW_RULES.get(op)
    if rule is not None:
        result = rule(viewed, offset, *args, **kwargs)
        if result is not NotImplemented:
            return result
    return infer_view_by_meta(op, viewed, offset, args, kwargs)
