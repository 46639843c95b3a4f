"""`ctx.saved_tensors` of a node from outside: a custom function's backward is compiled by itself.

    (result,) = ctx.saved_tensors     # read for real; the tensors are inputs of the graph

Reading unpacks the tensors: a result of the forward is a new object each time, and a hook on saved
tensors is called. So the tensors are guarded as any others, and where a hook would be called the
graph breaks before it.
"""

from __future__ import annotations

import sys
import types
from functools import partial
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from braze.capture.frames.control_signals import BreakRequested
from braze.compat import private_names as private


def call_of_getter(descriptor: Any, owner: Any, cls: type) -> tuple[Any, ...]:
    """The function, and its arguments, that read an attribute which C code keeps of an object."""
    if issubclass(cls, BackwardCFunction) and descriptor.__name__ == "saved_tensors":
        return (partial(_unpack, owner, cls),)
    return descriptor.__get__, owner, cls


# --- private ---------------------------------------------------------------------------------


def _unpack(node: object, cls: type) -> tuple[torch.Tensor | None, ...]:
    if sys.getprofile() is not None:
        raise BreakRequested("autograd-function", "ctx.saved_tensors under a profiler of Python")
    sys.setprofile(_refuse_hook)
    try:
        with private.no_dispatch():
            saved: tuple[torch.Tensor | None, ...] = _SAVED.__get__(node, cls)
    finally:
        sys.setprofile(None)
    return saved


_SAVED: Any = BackwardCFunction.saved_tensors


def _refuse_hook(frame: types.FrameType, event: str, argument: object) -> None:
    """A profile function: no Python code but that of `no_dispatch` runs."""
    if event == "call" and frame.f_globals.get("__name__") not in _OWN:
        name = frame.f_code.co_qualname
        raise BreakRequested("autograd-function", f"ctx.saved_tensors, which calls {name}")


_OWN = frozenset({"contextlib", "torch.utils._mode_utils", "torch.utils._python_dispatch"})
