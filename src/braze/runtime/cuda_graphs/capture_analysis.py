"""What a schedule says of its recording: which pointers may be patched, and which are fixed."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import final

from braze.compat.torch.dispatcher import needs_data
from braze.frozen import frozen
from braze.ir.kernels.kernel import KernelSources
from braze.ir.kernels.loops import Buffer
from braze.ir.kernels.schedule import ExternStep, Schedule
from braze.runtime.launch.result_storage import (
    fresh_results,
    given_to_library,
    views_of,
    whole_results,
)
from braze.shapes.expr import Expr, constant_value, symbols


@final
@frozen
class RecordingFacts:
    """Inputs and results by their numbers.

    count: of the inputs that are tensors. sized: inputs with symbolic sizes.
    kernel_inputs: given to our kernels only; number_inputs: those on the CPU, whose values are
    given; places: of each in the table. fixed_inputs: given to library calls. copied_back: written
    to; where a recording has a copy of one, that is copied back. written: the same, in order.
    whole_results: the first that is all of its memory. fresh_results: those of them that our
    kernels write and that nothing else reads; result_places: of each in the table.
    same_results: views of the memory of a whole one. input_results: views of inputs.
    constant_results: views of constants. results: how many there are. expanded_results: those of
    which elements share memory.
    """

    count: int
    sized: tuple[int, ...]
    kernel_inputs: tuple[int, ...]
    number_inputs: tuple[int, ...]
    places: Mapping[int, int]
    fixed_inputs: tuple[int, ...]
    copied_back: frozenset[int]
    written: tuple[int, ...]
    whole_results: frozenset[int]
    fresh_results: tuple[int, ...]
    result_places: Mapping[int, int]
    same_results: Mapping[int, int]
    input_results: Mapping[int, int]
    constant_results: frozenset[int]
    results: int = 0
    expanded_results: frozenset[int] = frozenset()

    def copied(self, kept_from: int) -> list[int]:
        """Results of library calls that leave a recording as copies. kept_from: from that number
        on results may stay in a recording's memory."""
        return [n for n in sorted(self.whole_results - {*self.fresh_results}) if n < kept_from]

    def staying(self, kept_from: int) -> frozenset[int]:
        """Results that are in a recording's memory after a replay."""
        made = {*self.fresh_results, *self.copied(kept_from)}
        made |= {n for n, base in self.same_results.items() if base in made}
        return frozenset(range(self.results)) - made - {*self.input_results, *self.constant_results}

    def may_be_copied(self) -> bool:
        """Whether all results may leave a recording's memory as copies."""
        return self.expanded_results.isdisjoint(self.staying(sys.maxsize))


def recording_facts(
    schedule: Schedule, sources: KernelSources, kind: str, saved_from: int = sys.maxsize
) -> RecordingFacts | str:
    """The facts, or why calls cannot be recorded. kind: of the kernels' device. saved_from: results
    from that number on wait for a backward."""
    refused = _refused(schedule, kind)
    if refused:
        return refused
    inputs = {buffer: number for number, buffer in enumerate(schedule.inputs)}
    places = {buffer: place for place, buffer in enumerate(sources.table)}
    targets = [target for target, _ in schedule.mutations]
    foreign = given_to_library(schedule)
    ours = {b: n for b, n in inputs.items() if b not in foreign and b in places}
    if any(b.device.type != kind and b not in ours for b in inputs):
        return "it takes a tensor on the CPU, and not as a number"
    bases = whole_results(schedule, saved_from)
    fresh = sorted([n for b, n in fresh_results(schedule, saved_from).items() if b in places])
    return RecordingFacts(
        count=len(inputs),
        sized=tuple([n for b, n in inputs.items() if _is_symbolic(b)]),
        kernel_inputs=tuple([n for b, n in ours.items() if b.device.type == kind]),
        number_inputs=tuple([n for b, n in ours.items() if b.device.type != kind]),
        places={n: places[b] for b, n in inputs.items() if b in places},
        fixed_inputs=tuple([n for b, n in inputs.items() if b in foreign]),
        copied_back=frozenset([inputs[b] for b in (*schedule.in_place, *targets)]),
        written=tuple(sorted({inputs[b] for b in (*schedule.in_place, *targets)})),
        whole_results=frozenset(bases.values()),
        fresh_results=tuple(fresh),
        result_places={n: places[schedule.outputs[n].buffer] for n in fresh},
        same_results=_same_results(schedule, bases),
        input_results={
            n: inputs[view.buffer]
            for n, view in enumerate(schedule.outputs)
            if view.buffer in inputs
        },
        constant_results=_constant_results(schedule),
        results=len(schedule.outputs),
        expanded_results=frozenset(
            [n for n, v in enumerate(schedule.outputs) if 0 in map(constant_value, v.stride)]
        ),
    )


def step_refused(step: ExternStep, kind: str) -> str:
    """Why a library call cannot be recorded, or ""."""
    if needs_data(step.call.op) or _looks_for_bounds(step):
        return f"{step.call.op} waits for the device"
    if _SOLVED.match(step.call.op._schema.name):
        return f"{step.call.op} is a solver's, which fails once more behind a refused capture"
    if any(view.is_number for view in views_of(step)):
        return f"{step.call.op} takes a number that is computed on the CPU"
    if any(b is not None and b.device.type != kind for b in step.call.outputs):
        return "a part of it runs on the CPU"
    for view in views_of(step):
        # A number may be passed by value; what is copied would have to be pinned.
        copies = view.shape != () or step.call.op._schema.name in _COPIES
        if view.buffer.device.type != kind and copies:
            return f"{step.call.op} copies from the CPU"
    return ""


# --- private ---------------------------------------------------------------------------------

# Operators that cuSOLVER and MAGMA compute. These are not tried: behind a capture that one refuses,
# its next call outside fails, too (test_capture_trials.py on a GPU, eigh).
_SOLVED = re.compile(
    r"aten::_?(linalg_)?_?"
    r"(chol|det(?!ach)|eig|geqrf|householder|inv|ldl|lobpcg|lstsq|lu|or[gm]qr|qr|slogdet|solve|svd|"
    r"triangular_solve)"
)
_COPIES = frozenset({"aten::_to_copy", "aten::copy", "aten::copy_"})


def _looks_for_bounds(step: ExternStep) -> bool:
    """A histogram without bounds asks for the least value and the largest."""
    low, high, *_ = *step.call.args[2:], 0, 0
    return step.call.op._schema.name == "aten::histc" and low == high


def _refused(schedule: Schedule, kind: str) -> str:
    """Why no call can be recorded, or ""."""
    for step in schedule.steps:
        why_not = step_refused(step, kind) if isinstance(step, ExternStep) else ""
        if why_not:
            return why_not
    inputs = {*schedule.inputs}
    if any(v.buffer in inputs and v.dtype != v.buffer.dtype for v in schedule.outputs):
        return "a result is an input as another dtype"
    return ""


def _same_results(schedule: Schedule, bases: Mapping[Buffer, int]) -> dict[int, int]:
    return {
        number: bases[view.buffer]
        for number, view in enumerate(schedule.outputs)
        if view.buffer in bases and bases[view.buffer] != number and view.dtype == view.buffer.dtype
    }


def _constant_results(schedule: Schedule) -> frozenset[int]:
    constants = {buffer for buffer, _ in schedule.constants}
    return frozenset([n for n, v in enumerate(schedule.outputs) if v.buffer in constants])


def _is_symbolic(buffer: Buffer) -> bool:
    return any(_has_symbols(size) for size in (*buffer.shape, *buffer.stride))


def _has_symbols(size: int | Expr) -> bool:
    return bool(symbols(size))
