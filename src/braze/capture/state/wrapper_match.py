"""What a tensor of a wrapper subclass says of itself, without its class's Python code."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch

from braze.compat import private_names as private


class WrapperFacts(NamedTuple):
    """Metadata of a wrapper; sizes and strides in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int | torch.SymInt
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool
    is_leaf: bool


_off = private.disabled_torch_functions
_Answer: TypeAlias = tuple[
    torch.Size,
    tuple[int, ...],
    int | torch.SymInt,
    torch.dtype,
    torch.device,
    torch.layout,
    bool,
    bool,
    type,
]


def wrapper_facts(tensor: torch.Tensor) -> _Answer:
    """The fields of `WrapperFacts` as C++ has them, and the class: asked at each call, and no
    `__torch_function__` is, which the program may count."""
    with _off():
        return (
            tensor.shape,
            tensor.stride(),
            tensor.storage_offset(),
            tensor.dtype,
            tensor.device,
            tensor.layout,
            tensor.requires_grad,
            tensor.is_leaf,
            type(tensor),
        )


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor has elements of its own, which its class need not intercept."""
    with _off():
        try:
            return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() != 0
        except (RuntimeError, NotImplementedError):  # it has no storage, or none to be looked at
            return False
