"""Generated source: translation units, and how their entries are called.

Every pointer that kernels touch has a place in one table a graph; an entry runs all kernels
between two extern calls, so that starting a kernel costs a C call.
"""

from __future__ import annotations

from typing import TypeAlias, final

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer
from braze.ir.types import Size
from braze.shapes.expr import Symbol


@final
@frozen
class SourceUnit:
    """One translation unit; `text` is complete and includes nothing."""

    name: str
    text: str


@final
@frozen
class Segment:
    """`int entry(char** table, const long* sizes, int threads)` runs steps [first, last] of the
    schedule, all kernels; it returns 0, 1 for an index out of range, 2 for an integer division
    by zero. On a device the entry is a plan that its launcher reads."""

    entry: str
    first: int
    last: int


@final
@frozen
class DeviceFunction:
    """One Triton function, built once for all launches of it.

    text: complete Python source, which imports triton and defines `name`.
    signature: Triton's type of each argument in order: "*fp32", "i64", "i32", or "constexpr".
    constants: the values of the constexpr arguments, in their order.
    aligned: places of the arguments (pointers and sizes) that are divisible by 16.
    checked: it asserts that indices are in range: the device stops as eager's kernels stop it.
    """

    name: str
    text: str
    signature: tuple[str, ...]
    constants: tuple[int, ...]
    aligned: tuple[int, ...]
    warps: int
    stages: int = 1
    checked: bool = False


# What a launch passes: the pointer of a buffer, or a size. A buffer on the CPU, of one element, in
# the place of a number ("fp64") is passed as its value.
LaunchArgument: TypeAlias = Buffer | Size


@final
@frozen(eq=False)
class Launch:
    """A device function on a grid of blocks; arguments: those that are not constexpr, in order."""

    function: DeviceFunction
    grid: tuple[Size, Size, Size]
    arguments: tuple[LaunchArgument, ...]


@final
@frozen(eq=False)
class KernelSources:
    """table: the buffer behind each place of the pointer table; sizes: the symbol (for a device:
    the expression) behind each place of the array of sizes. launches: for a device, the launches
    of each step of the schedule (none for an extern call), in the schedule's order; () for the
    CPU. A device's table leaves out what lies in the arena."""

    units: tuple[SourceUnit, ...]
    segments: tuple[Segment, ...]
    table: tuple[Buffer, ...]
    sizes: tuple[Symbol, ...] | tuple[Size, ...]
    launches: tuple[tuple[Launch, ...], ...] = ()


def print_sources(sources: KernelSources) -> str:
    """The text of every unit and device function, each once."""
    functions = {launch.function: None for step in sources.launches for launch in step}
    return "\n".join([*(unit.text for unit in sources.units), *(f.text for f in functions)])
