"""What a captured frame says of sizes that change from call to call."""

from __future__ import annotations

from typing import TypeGuard

from braze.ir.captured.frame import CapturedFrame, Refused
from braze.ir.graphs.run_graph import bindings_of


def is_symbolic(captured: CapturedFrame | Refused) -> TypeGuard[CapturedFrame]:
    """Whether the graph has symbols."""
    return isinstance(captured, CapturedFrame) and bool(bindings_of(captured.graph))


def lacks_symbols(captured: CapturedFrame | Refused) -> bool:
    """Whether a symbol of the graph can be had neither from its inputs nor from numbers: what was
    found out of an integer put unknowns in its place (`n % 7 % 3 == 0`)."""
    return isinstance(captured, CapturedFrame) and not captured.is_known
