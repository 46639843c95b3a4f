"""The lists of operators that are known to fail: they may only shrink, on the version of PyTorch
that they were made with. Another version's database may lack the cause of a fault."""

from __future__ import annotations

from collections.abc import Collection

from braze.compat.torch.versions import TORCH

MADE_WITH = (2, 13)


def outdated(names: Collection[str]) -> list[str]:
    """Of listed operators that pass, those that are to be taken off their list."""
    return sorted(names) if TORCH == MADE_WITH else []
