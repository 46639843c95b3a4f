"""Capture: a frame's bytecode, interpreted on real objects, becomes a graph with guards."""

from braze.capture.calls.handler_registry import is_answered
from braze.capture.frame_capture import break_codes, capture_frame
from braze.capture.request import FrameRequest
from braze.capture.tensors.symbolic_sizes import with_assumptions
from braze.ir.captured.frame import CapturedFrame, Refused

__all__ = [
    "CapturedFrame",
    "FrameRequest",
    "Refused",
    "break_codes",
    "capture_frame",
    "is_answered",
    "with_assumptions",
]
