"""Inference mode that a frame enters before it computes anything, and leaves behind it.

    with torch.inference_mode():        the graph is called in that mode: what it makes are
        y = model(x)                    inference tensors, as in eager
    return y

A graph runs as a whole in one mode or the other. So what the frame computes outside of the block is
another graph's: it is left behind the block, or, where that is inside of another call, before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.frames.control_signals import BreakRequested, CannotRebuild

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@final
class InferenceRegion:
    """manager: what the frame entered; entered_at, left_at: the outermost loop's steps, the second
    and `calls`, how many were recorded, once it has left."""

    left_at: int
    calls: int

    def __init__(self, manager: object, entered_at: int) -> None:
        self.manager = manager
        self.entered_at = entered_at


def enter_inference(interpreter: Interpreter, manager: Any) -> None:
    """Note that inference mode begins, or ends, with a manager. Raises BreakRequested where what
    was computed before is not of the mode."""
    is_first = interpreter.inference is None and not interpreter.tracer.recorder.calls
    if not (is_first and manager.mode) or interpreter.transforms:
        raise BreakRequested("global-state", "inference mode, in which tensors are of a kind")
    interpreter.inference = InferenceRegion(manager, interpreter.outer_step)


def leave_inference(interpreter: Interpreter, manager: object) -> None:
    """Note that a manager was left."""
    region = interpreter.inference
    if region is not None and region.manager is manager:
        region.left_at = interpreter.outer_step
        region.calls = len(interpreter.tracer.recorder.calls)


def check_inference(interpreter: Interpreter) -> bool:
    """Whether the graph is to be called in inference mode. Raises CannotRebuild where a part of it
    is not of the mode."""
    for manager in interpreter.entered:
        if type(manager) is torch.inference_mode:  # it keeps its state in C
            step = interpreter.entered_at[id(manager)]
            raise CannotRebuild("inference mode that is in force", step, "global-state")
    region = interpreter.inference
    if region is None:
        return False
    if len(interpreter.tracer.recorder.calls) > region.calls:
        behind = region.left_at + 1
        step = region.entered_at if interpreter.leave_at == behind else behind
        raise CannotRebuild("operators behind inference mode", step, "global-state")
    return region.calls > 0
