"""Shape rules: result types of operators from argument types.

`infer(op, args, kwargs)` takes what the operator takes, with `TensorType` in place of tensors, and
returns what it returns, likewise. A rule is written for what is called most; the rest is asked of
the operator's meta kernel. A rule returns NotImplemented for arguments that it does not cover.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from braze.ir.types import TensorType
from braze.tracing.shape_rules import attention as attention
from braze.tracing.shape_rules import fft as fft
from braze.tracing.shape_rules import indexing as indexing
from braze.tracing.shape_rules import losses as losses
from braze.tracing.shape_rules import matmul_conv as matmul_conv
from braze.tracing.shape_rules import no_meta as no_meta
from braze.tracing.shape_rules import padding as padding
from braze.tracing.shape_rules import pointwise as pointwise
from braze.tracing.shape_rules import reductions as reductions
from braze.tracing.shape_rules import views as views
from braze.tracing.shape_rules.dtype_support import check_dtypes
from braze.tracing.shape_rules.meta_corrections import correct
from braze.tracing.shape_rules.meta_fallback import infer_by_meta, infer_view_by_meta
from braze.tracing.shape_rules.registry import RULES, VIEW_RULES
from braze.tracing.shape_rules.size_checks import CHECKED, check_sizes
from braze.tracing.symbolic.infer_by_sampling import (
    facts_of,
    has_symbols,
    in_numbers,
    infer_by_probing,
)


def infer(op: torch._ops.OpOverload, args: Sequence[object], kwargs: dict[str, object]) -> Any:
    """The operator's result with TensorType in place of tensors.

    Raises what eager raises for arguments that do not fit; Untraceable where nothing is known.
    """
    check_dtypes(op, args, kwargs)
    rule = RULES.get(op)
    if rule is not None:
        if op in CHECKED:
            check_sizes(op, tuple(args))
        result = rule(*args, **kwargs)
        if result is not NotImplemented:
            return result
    facts = facts_of((args, kwargs))
    if facts is not None:
        return _infer_symbolic(op, tuple(args), kwargs, facts.inferred)
    try:
        args = tuple(args)
        key = (freeze(args), freeze(tuple(kwargs.items())), torch.get_default_dtype())
        return _infer_once(op, key)
    except TypeError:  # an argument that does not hash: a generator
        return _of_meta(op, tuple(args), kwargs)


def _of_meta(
    op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    check_sizes(op, args)
    return correct(op, infer_by_meta(op, args, kwargs), args)


def _infer_symbolic(
    op: torch._ops.OpOverload,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    known: dict[object, object],
) -> object:
    """known: what was found out in the same capture."""
    key = (op, freeze(args), freeze(tuple(kwargs.items())), torch.get_default_dtype())
    if key not in known:
        known[key] = infer_by_probing(
            lambda numbers, named: infer(op, numbers, named), args, kwargs
        )
    return known[key]


def freeze(
    argument: object,
) -> (
    tuple[type[tuple[object, ...]] | type[list[object]], tuple[object, ...]]
    | tuple[type[object], object]
):
    """An argument as a key in which 1, 1.0 and True differ; nested tuples and lists alike."""
    if isinstance(argument, (tuple, list)):
        return (type(argument), tuple([freeze(a) for a in argument]))
    return (type(argument), argument)


def thaw(key: Any) -> Any:
    """The argument of such a key."""
    cls, argument = key
    if cls is tuple or cls is list:
        return cls([thaw(a) for a in argument])
    return argument


@functools.lru_cache(maxsize=1 << 14)
def _infer_once(op: torch._ops.OpOverload, key: Any) -> Any:
    args, kwargs, _ = key
    return _of_meta(op, thaw(args), dict(thaw(kwargs)))


def infer_view(
    op: torch._ops.OpOverload,
    viewed: TensorType,
    offset: int,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Any:
    """(type, storage offset) of a view of memory at `offset`; a tuple of those where the operator
    returns several views."""
    rule = VIEW_RULES.get(op)
    if rule is not None:
        result = rule(viewed, offset, *args, **kwargs)
        if result is not NotImplemented:
            return result
    if has_symbols((viewed, offset, args, kwargs)):
        viewed, offset, args, kwargs = in_numbers((viewed, offset, args, kwargs))
    return infer_view_by_meta(op, viewed, offset, args, kwargs)
