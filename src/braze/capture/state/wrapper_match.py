"""What a tensor of a wrapper subclass says of itself, without its class's Python code."""

from __future__ import annotations

from typing import final

import torch

from braze.compat import private_names as private
from braze.frozen import frozen


@final
@frozen
class WrapperFacts:
    """Metadata of a wrapper; sizes and strides in elements.

    has_memory: whether it has elements of its own, which its class need not intercept.
    """

    tensor_class: type
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool
    is_leaf: bool
    has_memory: bool


def wrapper_facts(tensor: torch.Tensor) -> WrapperFacts:
    """Metadata as C++ has it: no `__torch_function__` is asked, which the program may count."""
    with private.disabled_torch_functions():
        return WrapperFacts(
            tensor_class=type(tensor),
            shape=tuple(tensor.shape),
            stride=tuple(tensor.stride()),
            offset=int(tensor.storage_offset()),
            dtype=tensor.dtype,
            device=tensor.device,
            layout=tensor.layout,
            requires_grad=tensor.requires_grad,
            is_leaf=tensor.is_leaf,
            has_memory=_has_memory(tensor),
        )


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):  # it has no storage, or none that may be looked at
        return False
