"""How far what kernels compute may be from eager, which is inexact itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

# Of the largest value of a result, by its dtype.
TOLERANCES: Mapping[torch.dtype, float] = MappingProxyType(
    {
        torch.float64: 1e-9,
        torch.complex128: 1e-9,
        torch.float32: 1e-4,
        torch.complex64: 1e-4,
        torch.float16: 2e-2,
        torch.bfloat16: 1e-1,
    }
)

# What a sum that cancels leaves is rounding of its terms: so many roundings of the largest input.
ROUNDINGS = 64
