"""What reports and logs say of a graph's schedule."""

from __future__ import annotations

import os

from braze.compat.torch.registered_ops import convolution, pack_weights
from braze.ir.kernels.kernel_note import kernel_note
from braze.ir.kernels.plan_memory import peak_of_schedule
from braze.ir.kernels.print_schedule import print_fusion, print_schedule
from braze.ir.kernels.schedule import (
    ExternStep,
    Kernel,
    Schedule,
    statements_of,
)
from braze.ir.origin import UNKNOWN
from braze.report.extern_hints import extern_hint
from braze.trace import CompileRecorder, enabled


def note_schedule(plan: Schedule, title: str, recorder: CompileRecorder) -> None:
    """Note what runs by ATen, what was not fused, and the memory; and write the logs."""
    calls = [step.call for step in plan.steps if isinstance(step, ExternStep)]
    if packing := [call for call in calls if call.op is pack_weights]:
        recorder.count("packed weights", len(packing[0].outputs))
        calls.remove(packing[0])
    recorder.note_extern_ops(str(call.op) for call in calls)
    if fused := sum(call.op is convolution for call in calls):
        recorder.count("fused convolutions", fused)
    for call in calls if enabled("perf_hints") else ():
        if hint := extern_hint(call):
            recorder.emit("perf_hints", hint, origin=call.origin)
    recorder.note_fusion(lambda: _refusals(plan))
    known = not plan.sizes.symbols() and not plan.sized
    recorder.note_memory(title, lambda: peak_of_schedule(plan), is_whole=known)
    recorder.emit("schedule", lambda: print_schedule(plan))
    recorder.emit("fusion", lambda: print_fusion(plan))


def note_kernels(plan: Schedule, title: str, recorder: CompileRecorder) -> None:
    """Note the kernels of a graph by its title."""
    kernels = [step for step in plan.steps if isinstance(step, Kernel)]
    recorder.count("kernels", len(kernels))
    recorder.note_kernels(lambda: [kernel_note(kernel, title) for kernel in kernels])
    if products := sum(kernel.product is not None for kernel in kernels):
        recorder.count("products", products)


# --- private ---------------------------------------------------------------------------------


def _refusals(plan: Schedule) -> list[str]:
    """What was not computed in one kernel with what, by operators and lines of the program."""
    kernels = [step for step in plan.steps if isinstance(step, Kernel)]
    origins = {s.target.name: s.origin for kernel in kernels for s in statements_of(kernel)}

    def named(buffer: str) -> str:
        origin = origins.get(buffer, UNKNOWN)
        place = f"{os.path.basename(origin.file)}:{origin.line}"
        return f"{origin.op or origin.call or buffer} ({place})" if origin.line else buffer

    return [
        f"{named(each.consumer)} with {', '.join(map(named, each.producers))}: {each.reason}"
        for each in plan.refusals
    ]
