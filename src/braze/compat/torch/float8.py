"""How PyTorch rounds to floats of a byte: up to 2.11 what is too large for e4m3 becomes no number,
2.13 takes the largest number instead, for infinities, too."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch

from braze.compat.torch.ambient_state import call_untraced
from braze.compat.torch.versions import TORCH

_SATURATES: Mapping[tuple[int, ...], bool] = {(2, 11): False, (2, 13): True}


@functools.cache
def saturates_e4m3() -> bool:
    """Whether what is too large for e4m3 becomes the largest number. Another version is tried, when
    the first kernel converts: an operator at import would load 3 MiB of PyTorch's code."""
    known = _SATURATES.get(TORCH)
    return bool(call_untraced(saturates_here, (), {})) if known is None else known


def saturates_here() -> bool:
    """The same, tried."""
    too_large = torch.tensor(1e4, device="cpu")
    return not bool(too_large.to(torch.float8_e4m3fn).float().isnan())
