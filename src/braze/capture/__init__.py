"""Capture: a frame's bytecode, interpreted on real objects, becomes a graph with guards."""

from braze.capture.dynamic_sizes import with_assumptions
from braze.capture.handler_table import is_answered
from braze.capture.request import FrameRequest
from braze.capture.session import break_codes, capture_frame
from braze.ir.frame import CapturedFrame, Refused

__all__ = [
    "CapturedFrame",
    "FrameRequest",
    "Refused",
    "break_codes",
    "capture_frame",
    "is_answered",
    "with_assumptions",
]
