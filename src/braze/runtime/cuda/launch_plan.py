"""A segment's launches as numbers that the launcher reads, and the launcher itself.

    [kernels, most arguments, cuLaunchKernel, cuCtxSetCurrent, context, place of the arena,
     aligned places, place * aligned places,
     function, threads, shared, (kind, number) * 3, arguments, (kind, number) * arguments, ...]

Nothing is compiled for a graph: the launcher is an extension that is built once a machine.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from braze.frozen import frozen
from braze.ir.kernels.kernel import DeviceFunction, Launch, LaunchArgument
from braze.ir.kernels.loops import Buffer
from braze.ir.kernels.schedule import Slot
from braze.ir.types import Size
from braze.runtime.cuda.driver_api import LoadedFunction
from braze.shapes.expr import Expr, as_expr, constant_value

# Addresses as ints, then pairs that say which tensor's pointer goes where in the table.
LaunchPlan = Callable[..., int]

MISALIGNED = -1  # what a launcher returns where a pointer is not as the kernels are built for
_ALIGNMENT = 16
_ADDED = 4  # null pointers behind a kernel's arguments, at least as many as Triton adds
_INVALID_CONTEXT = 201


class ArgumentKind(enum.IntEnum):
    """What the number of an argument is: as it stands, a place of the sizes or of the table, an
    offset in the arena, or a place of the table that points to the value in the host's memory."""

    NUMBER = 0
    SIZE = 1
    POINTER = 2
    IN_ARENA = 3
    VALUE = 4


@final
@frozen
class Places:
    """Where a call finds what launches are given. arena: the arena's place in the table, or -1."""

    table: Mapping[Buffer, int]
    slots: Mapping[Buffer, Slot]
    sizes: Mapping[Expr, int]
    arena: int


@final
@frozen
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


def launch_by_ctypes(plan: int, table: int, sizes: int, stream: int, *bound: object) -> int:
    """`launch` without an extension: some microseconds slower a kernel."""
    reader = PlanReader(plan, table, sizes, bound)
    if reader.is_misaligned():
        return MISALIGNED
    return next((code for kernel in reader.kernels() if (code := reader.start(kernel, stream))), 0)


@final
@frozen
class ReadKernel:
    """A kernel of a plan. arguments: as the plan has them; values: in this call."""

    function: int
    threads: int
    shared: int
    grid: tuple[int, int, int]
    arguments: tuple[tuple[ArgumentKind, int], ...]
    values: tuple[int, ...]


@final
class PlanReader:
    """A plan, read for one call; the pointers of `bound`'s tensors are put into the table."""

    def __init__(self, plan: int, table: int, sizes: int, bound: Sequence[object]) -> None:
        for place, tensor in zip(bound[::2], bound[1::2]):
            assert isinstance(place, int) and isinstance(tensor, torch.Tensor)
            address = tensor.data_ptr()
            ctypes.c_void_p.from_address(table + _WIDTH * place).value = address
        self._table, self._sizes, self._next = table, sizes, plan
        self._count, _, self._start, self._set_context = (self._take() for _ in range(4))
        self._context, arena = self._take(), self._take()
        self._aligned = [self._take() for _ in range(self._take())]
        self._arena = 0 if arena < 0 else _long(table + _WIDTH * arena)

    def is_misaligned(self) -> bool:
        """Whether a pointer is not what the kernels are built for."""
        return any(_long(self._table + _WIDTH * place) % _ALIGNMENT for place in self._aligned)

    def kernels(self) -> Iterator[ReadKernel]:
        """The kernels, in order; once."""
        for _ in range(self._count):
            function, threads, shared = (self._take() for _ in range(3))
            x, y, z = (self._value(*self._pair()) for _ in range(3))
            arguments = tuple([self._pair() for _ in range(self._take())])
            values = tuple([self._value(*pair) for pair in arguments])
            yield ReadKernel(function, threads, shared, (x, y, z), arguments, values)

    def start(self, kernel: ReadKernel, stream: int) -> int:
        """Start it, if there is anything to compute; the driver's code."""
        if min(kernel.grid) <= 0:
            return 0
        arguments = _pointers([*kernel.values, *[0] * _ADDED])
        shape = (*kernel.grid, kernel.threads, 1, 1, kernel.shared)
        code: int = _LAUNCH(self._start)(kernel.function, *shape, stream, arguments, None)
        if code == _INVALID_CONTEXT and _SET_CONTEXT(self._set_context)(self._context) == 0:
            code = _LAUNCH(self._start)(kernel.function, *shape, stream, arguments, None)
        return code

    def _take(self) -> int:
        number = _long(self._next)
        self._next += _WIDTH
        return number

    def _pair(self) -> tuple[ArgumentKind, int]:
        return ArgumentKind(self._take()), self._take()

    def _value(self, kind: ArgumentKind, number: int) -> int:
        match kind:
            case ArgumentKind.SIZE:
                return _long(self._sizes + _WIDTH * number)
            case ArgumentKind.POINTER:
                return _long(self._table + _WIDTH * number)
            case ArgumentKind.IN_ARENA:
                return self._arena + number
            case ArgumentKind.VALUE:
                return _long(_long(self._table + _WIDTH * number))
            case _:
                return number


# --- private ---------------------------------------------------------------------------------

_P, _U = ctypes.c_void_p, ctypes.c_uint
_WIDTH = ctypes.sizeof(ctypes.c_long)
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
        return ArgumentKind.VALUE, places.table[argument]
    slot = places.slots.get(argument)
    if slot is not None:
        return ArgumentKind.IN_ARENA, slot.offset
    return ArgumentKind.POINTER, places.table[argument]


def _size(size: Size, places: Places) -> tuple[int, int]:
    constant = constant_value(size)
    if constant is not None:
        return ArgumentKind.NUMBER, constant
    return ArgumentKind.SIZE, places.sizes[as_expr(size)]


def _long(address: int) -> int:
    return ctypes.c_long.from_address(address).value


def _pointers(values: Sequence[int]) -> object:
    """An array of pointers to the values, which it keeps."""
    memory = (ctypes.c_long * len(values))(*values)
    start = ctypes.addressof(memory)
    made = (ctypes.c_void_p * len(values))(*[start + _WIDTH * n for n in range(len(values))])
    made._memory = memory  # type: ignore[attr-defined]
    return made
