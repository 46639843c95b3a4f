"""What starts kernels on a device; and the sizes that all kernels are given.

For a device nothing is generated here: its launcher reads the launches themselves. The table holds
what changes from call to call and constants; what is planned is found from the arena.
"""

from __future__ import annotations

from collections.abc import Sequence

from braze.ir.kernels.kernel import KernelSources, Launch, Segment
from braze.ir.kernels.loops import Buffer
from braze.ir.kernels.schedule import ExternStep, Schedule, device_runs
from braze.ir.types import Size
from braze.shapes.expr import Symbol, as_expr, constant_value, symbols


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
    segments = [Segment(f"segment{n}", *run) for n, run in enumerate(device_runs(schedule))]
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
