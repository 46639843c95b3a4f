"""Bytes that a call of a schedule holds at most: the arena, and what kernels and calls of ATen
allocate beside it. Inputs and constants are left out.
"""

from __future__ import annotations

from braze.ir.graphs.peak_memory import peak
from braze.ir.kernels.loops import bytes_of
from braze.ir.kernels.schedule import Schedule
from braze.ir.kernels.verify_schedule import reads, writes


def peak_of_schedule(plan: Schedule) -> int:
    """Bytes at most. A buffer whose sizes are symbols counts nothing."""
    given = {*plan.inputs, *dict(plan.constants), *dict(plan.slots), *dict(plan.sized)}
    steps = [(reads(step) | writes(step)) - given for step in plan.steps]
    kept = {view.buffer for view in (*plan.outputs, *(view for _, view in plan.mutations))}
    return plan.arena_size + peak(steps, kept, bytes_of)
