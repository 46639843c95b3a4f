"""A segment's launches as numbers that the launcher reads, and the launcher itself.

    [kernels, most arguments, cuLaunchKernel, cuCtxSetCurrent, context, place of the arena,
     aligned places, place * aligned places,
     function, threads, shared, (kind, number) * 3, arguments, (kind, number) * arguments, ...]

Nothing is compiled for a graph: the launcher is an extension that is built once a machine.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from braze.ir.kernel import DeviceFunction, Launch, LaunchArgument
from braze.ir.loops import Buffer
from braze.ir.schedule import Slot
from braze.ir.types import Size
from braze.options import Options
from braze.runtime.cuda_driver import LoadedFunction
from braze.runtime.launch import build_extension_module
from braze.runtime.toolchain import Toolchain
from braze.shapes.expr import Expr, as_expr, constant_value

# Addresses as ints, then pairs that say which tensor's pointer goes where in the table.
LaunchPlan = Callable[..., int]

MISALIGNED = -1  # what a launcher returns where a pointer is not as the kernels are built for
_ALIGNMENT = 16
_ADDED = 4  # null pointers behind a kernel's arguments, at least as many as Triton adds
_INVALID_CONTEXT = 201


class Kind(enum.IntEnum):
    """What the number of an argument is: as it stands, a place of the sizes or of the table, an
    offset in the arena, or a place of the table that points to the value in the host's memory."""

    NUMBER = 0
    SIZE = 1
    POINTER = 2
    IN_ARENA = 3
    VALUE = 4


@final
@dataclass(frozen=True, slots=True)
class Places:
    """Where a call finds what launches are given. arena: the arena's place in the table, or -1."""

    table: Mapping[Buffer, int]
    slots: Mapping[Buffer, Slot]
    sizes: Mapping[Expr, int]
    arena: int


@final
@dataclass(frozen=True, slots=True)
class Entries:
    """Addresses that a plan begins with."""

    launch: int
    set_context: int
    context: int


def encode(
    launches: Sequence[Launch],
    functions: Mapping[DeviceFunction, LoadedFunction],
    places: Places,
    entries: Entries,
) -> list[int]:
    """The plan of a segment."""
    most = max((len(launch.arguments) for launch in launches), default=0)
    head = [len(launches), most, entries.launch, entries.set_context, entries.context, places.arena]
    aligned = sorted({place for launch in launches for place in aligned_places(launch, places)})
    head += [len(aligned), *aligned]
    return head + [n for launch in launches for n in _encoded(launch, functions, places)]


def aligned_places(launch: Launch, places: Places) -> list[int]:
    """The places of the table whose pointers the launch's function takes to be aligned."""
    given = [buffer for _, buffer in _pointers_of(launch) if buffer not in places.slots]
    return [places.table[buffer] for buffer in given]


def with_misaligned(launch: Launch, places: Places, misaligned: Collection[int]) -> Launch:
    """The launch of a function that takes those places' pointers to have any address."""
    free = {
        number
        for number, buffer in _pointers_of(launch)
        if buffer not in places.slots and places.table[buffer] in misaligned
    }
    aligned = tuple([n for n in launch.function.aligned if n not in free])
    return replace(launch, function=replace(launch.function, aligned=aligned)) if free else launch


def load_device_launcher(toolchain: Toolchain | None, options: Options) -> LaunchPlan:
    """The extension's `launch`, or the same in ctypes where it cannot be built."""
    if toolchain is None:
        return launch_by_ctypes
    module = build_extension_module("device_launcher", toolchain, options)
    launch: LaunchPlan = launch_by_ctypes if module is None else module.launch
    return launch


def launch_by_ctypes(plan: int, table: int, sizes: int, stream: int, *bound: object) -> int:
    """`launch` without an extension: some microseconds slower a kernel."""
    width = ctypes.sizeof(ctypes.c_long)
    for place, tensor in zip(bound[::2], bound[1::2]):
        address = tensor.data_ptr()  # type: ignore[attr-defined]
        ctypes.c_void_p.from_address(table + width * place).value = address  # type: ignore[operator]
    numbers = _Numbers(plan)
    count, _, start, set_context, context, arena_place = (numbers.take() for _ in range(6))
    aligned = [numbers.take() for _ in range(numbers.take())]
    if any(_long(table + width * place) % _ALIGNMENT for place in aligned):
        return MISALIGNED
    arena = 0 if arena_place < 0 else _long(table + width * arena_place)
    read = {
        Kind.NUMBER: lambda n: n,
        Kind.SIZE: lambda n: _long(sizes + width * n),
        Kind.POINTER: lambda n: _long(table + width * n),
        Kind.IN_ARENA: lambda n: arena + n,
        Kind.VALUE: lambda n: _long(_long(table + width * n)),
    }
    for _ in range(count):
        function, threads, shared = (numbers.take() for _ in range(3))
        grid = [read[Kind(numbers.take())](numbers.take()) for _ in range(3)]
        given = range(numbers.take())
        values = [read[Kind(numbers.take())](numbers.take()) for _ in given]
        if min(grid) <= 0:
            continue
        arguments = _pointers([*values, *[0] * _ADDED])
        wanted = (function, *grid, threads, 1, 1, shared, stream, arguments, None)
        code = _LAUNCH(start)(*wanted)
        if code == _INVALID_CONTEXT and _SET_CONTEXT(set_context)(context) == 0:
            code = _LAUNCH(start)(*wanted)
        if code:
            return int(code)
    return 0


# --- private ---------------------------------------------------------------------------------

_P, _U = ctypes.c_void_p, ctypes.c_uint
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, _P, *[_U] * 7, _P, ctypes.POINTER(_P), _P)
_SET_CONTEXT = ctypes.CFUNCTYPE(ctypes.c_int, _P)


def _pointers_of(launch: Launch) -> list[tuple[int, Buffer]]:
    """The arguments that are aligned pointers, with their numbers among the function's."""
    kinds = launch.function.signature
    numbers = [number for number, kind in enumerate(kinds) if kind != "constexpr"]
    return [
        (number, argument)
        for number, argument in zip(numbers, launch.arguments, strict=True)
        if number in launch.function.aligned and isinstance(argument, Buffer)
    ]


def _encoded(
    launch: Launch, functions: Mapping[DeviceFunction, LoadedFunction], places: Places
) -> list[int]:
    function = functions[launch.function]
    count = len(launch.arguments)
    if not count <= function.parameters <= count + _ADDED:
        raise ValueError(
            f"{launch.function.name} takes {function.parameters} parameters and is given {count}"
        )
    numbers = [function.handle, function.threads, function.shared]
    for size in launch.grid:
        numbers += _size(size, places)
    numbers.append(count)
    kinds = [kind for kind in launch.function.signature if kind != "constexpr"]
    for kind, argument in zip(kinds, launch.arguments, strict=True):
        numbers += _argument(kind, argument, places)
    return numbers


def _argument(kind: str, argument: LaunchArgument, places: Places) -> tuple[int, int]:
    if not isinstance(argument, Buffer):
        return _size(argument, places)
    if not kind.startswith("*"):
        return Kind.VALUE, places.table[argument]
    slot = places.slots.get(argument)
    if slot is not None:
        return Kind.IN_ARENA, slot.offset
    return Kind.POINTER, places.table[argument]


def _size(size: Size, places: Places) -> tuple[int, int]:
    constant = constant_value(size)
    if constant is not None:
        return Kind.NUMBER, constant
    return Kind.SIZE, places.sizes[as_expr(size)]


class _Numbers:
    """A plan, read in order."""

    def __init__(self, address: int) -> None:
        self._next = address

    def take(self) -> int:
        number = _long(self._next)
        self._next += ctypes.sizeof(ctypes.c_long)
        return number


def _long(address: int) -> int:
    return ctypes.c_long.from_address(address).value


def _pointers(values: Sequence[int]) -> object:
    """An array of pointers to the values, which it keeps."""
    memory = (ctypes.c_long * len(values))(*values)
    start, width = ctypes.addressof(memory), ctypes.sizeof(ctypes.c_long)
    made = (ctypes.c_void_p * len(values))(*[start + width * n for n in range(len(values))])
    made._memory = memory  # type: ignore[attr-defined]
    return made
