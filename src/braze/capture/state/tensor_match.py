"""What TENSOR_MATCH compares of a tensor that a frame found."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from braze.compat.torch.tensor_abi import dispatch_keys
from braze.ir.captured.guard import TensorFacts


def tensor_facts(tensor: torch.Tensor, layout: Any = None) -> TensorFacts:
    """The metadata that a compiled entry may rely on. layout: sizes and strides, where some of
    them are symbolic; those are guarded apart."""
    if layout is not None:
        return dataclasses.replace(
            tensor_facts(tensor),
            shape=tuple([n if type(n) is int else None for n in layout[0]]),
            stride=tuple([n if type(n) is int else None for n in layout[1]]),
        )
    return TensorFacts(
        tensor_class=type(tensor),
        dtype=tensor.dtype,
        device=tensor.device,
        requires_grad=tensor.requires_grad,
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()) if tensor.layout is torch.strided else (),
        layout=tensor.layout,
        is_leaf=tensor.is_leaf,
        keys=dispatch_keys(tensor),
    )


# What differs between TensorFacts of one class.
COMPARED = ("dtype", "device", "requires_grad", "shape", "stride", "layout", "is_leaf", "keys")
