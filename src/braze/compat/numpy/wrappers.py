"""NumPy code as functions of tensors: `wrap_numpy`, and what `torch.compiler.wrap_numpy` made."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from braze.compat.numpy.interface import ARRAY, SCALARS

_Function = TypeVar("_Function", bound=Callable[..., Any])
_OF_TORCH = ("torch._dynamo.external_utils", "wrap_numpy.<locals>.wrap")


def wrap_numpy(function: _Function) -> _Function:
    """Decorate a function of NumPy's arrays: it takes tensors in their places, and gives tensors.

    Compiled, it runs where the tensors are, and gradients flow through it; where it is not, NumPy
    runs it on the CPU, and tensors that require gradients raise.
    """

    @functools.wraps(function)
    def wrapped(*args: object, **kwargs: object) -> object:
        args, kwargs = arrays_of((args, kwargs))
        return tensors_of(function(*args, **kwargs))

    return wrapped  # type: ignore[return-value]


def arrays_of(value: object) -> Any:
    """The same containers, with arrays in the places of tensors."""
    if isinstance(value, torch.Tensor):
        return value.cpu().numpy()
    return _mapped(value, arrays_of)


def tensors_of(value: object) -> object:
    """The same containers, with tensors in the places of arrays and of NumPy's numbers."""
    if isinstance(value, ARRAY) or type(value) in SCALARS:
        return torch.as_tensor(value)
    return _mapped(value, tensors_of)


def _mapped(value: Any, function: Callable[[Any], Any]) -> object:
    cls = type(value)
    if cls is tuple or cls is list:
        return cls([function(item) for item in value])
    if cls is dict:
        return {key: function(item) for key, item in value.items()}
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return cls(*[function(item) for item in value])
    return value


def in_place_of_torch_s(function: object) -> object:
    """`wrap_numpy` of what `torch.compiler.wrap_numpy` wraps; None for other functions."""
    if type(function) is not types.FunctionType:
        return None
    made = function.__globals__.get("__name__"), function.__code__.co_qualname
    return wrap_numpy(function.__dict__["__wrapped__"]) if made == _OF_TORCH else None
