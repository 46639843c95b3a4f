"""Classifies constant attention masks: no effect, causal, or other."""

from __future__ import annotations

import enum

import torch


class MaskKind(enum.Enum):
    """What a mask does, whatever the inputs are."""

    NOTHING = "true everywhere"
    CAUSAL = "true on and below the diagonal"
    OTHER = "something else, or it depends on inputs"


def kind_of_mask(data: torch.Tensor) -> MaskKind:
    """What a mask does: booleans, or numbers that are added, of which 0 lets pass and -inf does
    not."""
    if data.dtype is not torch.bool:
        passes = data == 0
        if not bool((passes | (data == -torch.inf)).all()):
            return MaskKind.OTHER
        data = passes
    if bool(data.all()):
        return MaskKind.NOTHING
    if data.dim() >= 2 and data.shape[-1] == data.shape[-2]:
        below = torch.ones(data.shape[-2:], dtype=torch.bool, device=data.device).tril()
        if bool((data == below).all()):
            return MaskKind.CAUSAL
    return MaskKind.OTHER
