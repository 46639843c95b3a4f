"""Composite functions that C++ makes of others, in Python, where sizes are symbolic.

    x.reshape(n, -1)    x.view(n, m), or a copy where the strides allow no view
    x.contiguous()      x, or a copy

They do what C++ does. C++ would ask the nodes of sizes a hundred questions for one `reshape`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch

from braze.ir.types import TensorType
from braze.shapes.symbolic import ProgramInt, plain_size
from braze.standins.layout import is_contiguous
from braze.standins.rules.views import completed_shape, numel_of, view_stride
from braze.standins.standin import Standin

_SIZES = frozenset((int, ProgramInt))
# Operators of no tensors, whose schemas have sizes as numbers: recorded as they are.
TAKES_NUMBERS = frozenset((torch.ops.aten.linspace.default,))


def _reshape(*args: Any, **kwargs: Any) -> Any:
    x = args[0] if args else None
    shape = args[1:]
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        (shape,) = shape
    if kwargs or not _is_symbolic(x, shape) or not _SIZES.issuperset(map(type, shape)):
        return torch.Tensor.reshape(*args, **kwargs)
    kind: TensorType = x.place.type
    sizes = completed_shape(tuple(map(plain_size, shape)), numel_of(kind.shape))  # type: ignore[arg-type]
    if view_stride(kind.shape, kind.stride, sizes) is not None:  # type: ignore[arg-type]
        return x.view(sizes)
    copy = x.clone(memory_format=torch.contiguous_format)
    return torch.ops.aten._unsafe_view.default(copy, sizes)


def _contiguous(*args: Any, **kwargs: Any) -> Any:
    x = args[0] if args else None
    if len(args) != 1 or kwargs or not _is_symbolic(x, ()):
        return torch.Tensor.contiguous(*args, **kwargs)
    kind: TensorType = x.place.type
    if is_contiguous(kind.shape, kind.stride):  # type: ignore[arg-type]
        return x
    return x.clone(memory_format=torch.contiguous_format)


# By what programs call.
IN_PYTHON: MappingProxyType[Any, Callable[..., Any]] = MappingProxyType(
    {
        torch.Tensor.reshape: _reshape,
        torch.reshape: _reshape,
        torch.Tensor.contiguous: _contiguous,
    }
)


def _is_symbolic(x: Any, shape: Any) -> bool:
    if type(x) is not Standin:
        return False
    return any(type(size) is not int for size in (*x.place.type.shape, *shape))
