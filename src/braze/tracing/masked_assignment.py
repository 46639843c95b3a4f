"""Writes where a mask is true, of values whose shape does not depend on how often it is:

    x[mask] = v    x.copy_(where(mask, v, x))

The operator behind it asks on the host where the mask is true, and the gradient of what is written
has as many rows as it is true: a size that depends on data.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch

from braze.ir.types import MASKS, TensorType
from braze.tracing.errors import DataDependent
from braze.tracing.fake_tensor import TracedTensor


def set_item(x: Any, key: Any, value: Any) -> None:
    """`x[key] = value`."""
    chosen = _chosen(x, key if type(key) is tuple else (key,), value)
    if chosen is None:
        operator.setitem(x, key, value)
    else:
        x.copy_(chosen)


def index_put(*args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.index_put(x, indices, values)`."""
    chosen = _chosen_of_call(*args, **kwargs)
    return torch.index_put(*args, **kwargs) if chosen is None else chosen


def index_put_in_place(*args: Any, **kwargs: Any) -> object:
    """`x.index_put_(indices, values)`."""
    chosen = _chosen_of_call(*args, **kwargs)
    if chosen is None:
        return torch.index_put_(*args, **kwargs)
    return (args[0] if args else kwargs["input"]).copy_(chosen)


def _chosen_of_call(*args: object, **kwargs: object) -> torch.Tensor | None:
    try:
        given = _INDEX_PUT.bind(*args, **kwargs)
    except TypeError:  # as C++ will say
        return None
    given.apply_defaults()
    x, indices, value, adds = given.args
    if not isinstance(indices, (tuple, list)) or type(adds) is not bool:
        return None
    return _chosen(x, tuple(indices), value, adds)


def _as_in_index_put(
    input: object, indices: object, values: object, accumulate: object = False
) -> None:
    """The signature of torch.index_put, whose first argument may be named too."""


_INDEX_PUT = inspect.signature(_as_in_index_put)


def _chosen(
    x: object, parts: tuple[object, ...], value: object, adds: bool = False
) -> torch.Tensor | None:
    """What x is after the write; None where the operator is to do it. Raises DataDependent where
    a backward could not."""
    masks = [p for p in parts if type(p) is TracedTensor and p.dtype in MASKS and p.dim()]
    if not masks or type(x) is not TracedTensor or type(value) is not TracedTensor:
        return None
    if len(parts) == 1 and _is_plain(x, masks[0], value):
        mask: torch.Tensor = masks[0]
        if mask.device != x.device:
            mask = mask.to(x.device)
        mask = mask[(..., *[None] * (x.dim() - mask.dim()))]
        return torch.where(mask, x + value if adds else value, x)
    if value.requires_grad and torch.is_grad_enabled():
        what = "the gradient of what is written has as many rows as the mask is true"
        raise DataDependent("aten.index_put.default", what)
    return None


def _is_plain(x: TracedTensor, mask: TracedTensor, value: TracedTensor) -> bool:
    """Whether the value is spread over all that the mask chooses, in memory without overlaps."""
    kind: TensorType = x.place.type
    sizes, chosen = mask.place.type.shape, kind.shape[mask.dim() :]
    given = value.place.type.shape
    first = len(chosen) - len(given)
    return (
        mask.dtype is torch.bool
        and (value.dtype, value.device) == (x.dtype, x.device)
        and first >= 0
        and len(sizes) <= len(kind.shape)
        and all(map(_is_same, sizes, kind.shape))
        and all(n == 1 or _is_same(n, m) for n, m in zip(given, chosen[first:], strict=True))
        and not any(step == 0 and n != 1 for n, step in zip(kind.shape, kind.stride, strict=True))
    )


def _is_same(a: object, b: object) -> bool:
    return a is b or (type(a) is int and type(b) is int and a == b)
