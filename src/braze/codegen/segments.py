"""Which kernels are started together; and on a device, what starts them.

For a device nothing is generated here: its launcher reads the launches themselves. The table holds
what changes from call to call and constants; what is planned is found from the arena.
"""

from __future__ import annotations

from collections.abc import Sequence

from braze.ir.kernel import KernelSources, Launch, Segment
from braze.ir.loops import Buffer
from braze.ir.schedule import ExternStep, Kernel, Schedule
from braze.ir.types import Size
from braze.shapes.expr import Symbol, as_expr, constant_value, symbols


def kernel_runs(schedule: Schedule) -> list[tuple[int, int]]:
    """Runs of kernels between extern calls, as (first, last) steps. Where inputs begin to be
    written to in place, another one begins: faults before are met."""
    found: list[tuple[int, int]] = []
    for number, step in enumerate(schedule.steps):
        if not isinstance(step, Kernel):
            continue
        if found and found[-1][1] == number - 1 and number != schedule.settled:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def size_symbols(schedule: Schedule) -> tuple[Symbol, ...]:
    """The symbols in sizes, offsets and index values of all kernels, in a stable order."""
    found: set[Symbol] = set()
    for buffer in schedule.inputs:
        for size in (*buffer.shape, *buffer.stride):
            found |= symbols(size)
    found |= schedule.sizes.symbols()
    for step in schedule.steps:
        if isinstance(step, ExternStep) and step.call.computes is not None:
            found.add(step.call.computes)
    return tuple(sorted(found, key=lambda symbol: symbol.name))


def host_sources(schedule: Schedule, launches: Sequence[tuple[Launch, ...]]) -> KernelSources:
    """The sources of a schedule on a device; launches: of each of its steps, () for extern
    calls."""
    segments = [
        Segment(f"segment{number}", first, last)
        for number, (first, last) in enumerate(kernel_runs(schedule))
    ]
    table = _table(schedule, launches)
    return KernelSources((), tuple(segments), table, _sizes(launches), tuple(launches))


# --- private ---------------------------------------------------------------------------------


def _table(schedule: Schedule, launches: Sequence[tuple[Launch, ...]]) -> tuple[Buffer, ...]:
    """The buffers that launches are given, those in the arena left out."""
    planned = {buffer for buffer, _ in schedule.slots}
    used = {
        argument: None
        for step in launches
        for launch in step
        for argument in launch.arguments
        if isinstance(argument, Buffer) and argument not in planned
    }
    return tuple(used)


def _sizes(launches: Sequence[tuple[Launch, ...]]) -> tuple[Size, ...]:
    """The symbolic sizes that launches are given, grids included, each once."""
    found = {
        as_expr(size): None
        for step in launches
        for launch in step
        for size in (*launch.grid, *launch.arguments)
        if not isinstance(size, Buffer) and constant_value(size) is None
    }
    return tuple(found)
