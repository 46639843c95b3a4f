"""Constants in `torch.fx` graphs: in the text where that can say them, else in the module.

x.to(bool)                 l_x_.to(torch.bool)
Scale.apply(x, config)     _constant0 = self._constant0;  Scale(l_x_, _constant0)
"""

from __future__ import annotations

import cmath
import enum
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from braze.compat import private_names as private
from braze.compat.private_names import OpOverload, OpOverloadPacket

# Whose printed form is Python that reads as the same value.
_SAID = frozenset(
    {
        types.NoneType,
        types.EllipsisType,
        bool,
        int,
        float,
        str,
        bytes,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)
# Types that stand for dtypes where a call of torch takes one.
_DTYPES: dict[Any, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}
_NAMED = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    OpOverload,
    OpOverloadPacket,
)


def said_dtype(value: object) -> Any:
    """The dtype that a Python type stands for; anything else as it is."""
    return _DTYPES.get(value, value) if isinstance(value, type) else value


def said_constant(root: torch.nn.Module, graph: fx.Graph, value: Any) -> object:
    """A constant as an argument of a node: itself where the graph's text can say it, else a node
    that takes it from the module."""
    cls = type(value)
    if cls in _SAID or isinstance(value, fx.Node) or (cls is complex and cmath.isfinite(value)):
        return value
    if isinstance(value, (int, str)) and isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (float, int)):  # of a class of the program's: operators see a number
        return float(value) if isinstance(value, float) else int(value)
    name = f"_constant{len(vars(root))}"
    setattr(root, name, value)
    return graph.get_attr(name)


def said_target(target: Callable[..., object]) -> Callable[..., object]:
    """What a node calls. What has no name of its own (a scripted function, the `__new__` of a
    legacy tensor type), or whose name in torch means something else since the program replaced it,
    is called by a function that has one."""
    is_of_class = isinstance(getattr(target, "__self__", None), type)
    if isinstance(target, (*_NAMED, type)) and not is_of_class and _is_found_by_name(target):
        return target
    return said_function(target, getattr(target, "__name__", None) or type(target).__name__)


def said_method(name: str) -> Callable[..., object] | None:
    """What a node calls in place of a method that the program replaced; None where nobody did."""
    if getattr(torch.Tensor, name, None) is _METHODS.get(name):
        return None
    return said_function(getattr(private.TensorBase, name), name)


def said_function(function: Callable[..., object], name: str) -> Callable[..., object]:
    """A function that has a name, and calls another one."""

    def call(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    call.__name__ = name
    return call


# As they are before a program replaces some.
_METHODS = {name: getattr(torch.Tensor, name, None) for name in dir(torch.Tensor)}


def _is_found_by_name(target: Any) -> bool:
    """Whether the text of a graph, which says functions of torch by their names, finds this one."""
    module = getattr(target, "__module__", None) or ""
    if not module.startswith("torch"):
        return True
    name = target.__name__
    is_method = getattr(target, "__qualname__", "") == f"Tensor.{name}"
    home = torch.Tensor if is_method else sys.modules.get(module)
    return getattr(home, name, target) is target
