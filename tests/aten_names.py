"""The operators of ATen that are registered; `dir(torch.ops.aten)` has those looked up so far."""

from __future__ import annotations

import torch


def aten_names() -> list[str]:
    """Their names, without overloads."""
    names = torch._C._dispatch_get_all_op_names()
    return sorted({n[6:].partition(".")[0] for n in names if n.startswith("aten::")})
