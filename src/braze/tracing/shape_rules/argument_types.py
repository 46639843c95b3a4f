"""Normalizes operator arguments for shape rules and messages."""

from __future__ import annotations

from typing import Any

import torch

from braze.shapes.number_nodes import FloatNode
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.graph_inputs import input_type
from braze.tracing.symbolic.symbolic_float import SymbolicFloat

_PLAIN = frozenset(
    (
        int,
        bool,
        float,
        str,
        type(None),
        TracedTensor,
        torch.dtype,
        torch.device,
        torch.memory_format,
    )
)


def with_plain_sizes(arguments: Any) -> Any:
    """Arguments of C++, with symbolic sizes and floats as shape rules have them."""
    if _PLAIN.issuperset(map(type, arguments)):
        return arguments
    made = []
    for argument in arguments:
        cls = type(argument)
        if cls is torch.SymInt or cls is torch.SymFloat:
            argument = argument.node
            if type(argument) is FloatNode:
                argument = argument.value
        elif cls is list or cls is tuple:
            argument = with_plain_sizes(argument)
        elif cls not in _PLAIN and isinstance(argument, (torch.SymInt, torch.SymFloat)):
            argument = argument.node
        made.append(argument)
    return made if type(arguments) is list else tuple(made)


def place_types(args: Any) -> tuple[object, ...]:
    """The types of several arguments, as eager gives them to tensors."""
    return tuple([place_type(a) for a in args])


def place_type(argument: object) -> Any:
    """The type of a tensor, as eager gives it, and a float for a symbolic one; anything else as it
    is."""
    if type(argument) is TracedTensor:
        return argument.place.type
    if type(argument) is SymbolicFloat:
        return argument.example()
    if isinstance(argument, (list, tuple)):
        return place_types(argument)
    if isinstance(argument, torch.Tensor):
        return input_type(argument)
    return argument


def scalar_name(dtype: torch.dtype) -> str:
    """A dtype as PyTorch's messages name it."""
    return _SCALAR_NAMES.get(dtype, str(dtype).removeprefix("torch.").capitalize())


_SCALAR_NAMES = {
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float16: "Half",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.bfloat16: "BFloat16",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}
