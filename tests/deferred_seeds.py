"""`torch.manual_seed` without the stacks that PyTorch formats.

PyTorch defers a seed for each kind of device that a process has not used yet, and formats the whole
stack for the message of a failure then: under pytest some sixty frames, with a look at each file.
Every test seeds, and PyTorch's database of operators does for every sample.
"""

from __future__ import annotations

import traceback
from types import SimpleNamespace

import torch

# `torch.<name>` defers calls, with a stack beside each.
DEVICES = ("cuda", "mtia", "xpu")


def format_no_stacks() -> None:
    """Keep calls that wait for a device's first use without the stack of who made them."""
    without = SimpleNamespace(**{**vars(traceback), "format_stack": list})
    for name in DEVICES:
        module = getattr(torch, name, None)
        if hasattr(module, "traceback"):
            vars(module)["traceback"] = without
