"""Launches as numbers, and the launcher that reads them: a driver that writes down its calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from braze.ir.kernels.kernel import DeviceFunction, Launch
from braze.ir.kernels.loops import Buffer
from braze.ir.kernels.schedule import Slot
from braze.options import Options
from braze.runtime.cuda.driver_api import LoadedFunction
from braze.runtime.cuda.launch_plan import (
    MISALIGNED,
    Entries,
    Places,
    aligned_places,
    encode,
    launch_by_ctypes,
    with_misaligned,
)
from braze.runtime.cuda.output_allocation import load_launcher_for_devices
from braze.runtime.launch.cpp_compiler import Toolchain, find_toolchain
from braze.shapes.expr import Symbol, as_expr

_P, _U = ctypes.c_void_p, ctypes.c_uint
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, _P, *[_U] * 7, _P, ctypes.POINTER(_P), _P)
_SET = ctypes.CFUNCTYPE(ctypes.c_int, _P)
STREAM = 0x7777


@dataclass
class FakeDriver:
    """`cuLaunchKernel` and `cuCtxSetCurrent` that write down what they are given. codes: what
    the launches answer, 0 when they are used up."""

    parameters: dict[int, int]
    codes: list[int] = field(default_factory=list)
    launches: list[tuple[Any, ...]] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._callbacks = _LAUNCH(self._launch), _SET(self._set)

    def entries(self) -> Entries:
        launch, set_context = (ctypes.cast(c, _P).value or 0 for c in self._callbacks)
        return Entries(launch, set_context, 0x1234)

    def _launch(self, function: int, *rest: Any) -> int:
        *shape, stream, pointers, _ = rest
        values = [
            ctypes.c_long.from_address(pointers[n]).value for n in range(self.parameters[function])
        ]
        self.launches.append((function, tuple(shape), stream, values))
        return self.codes.pop(0) if self.codes else 0

    def _set(self, context: int) -> int:
        self.contexts.append(context)
        return 0


def _buffer(name: str, *shape: Any, dtype: torch.dtype = torch.float32) -> Buffer:
    stride = tuple(1 for _ in shape)
    return Buffer(name, dtype, tuple(shape), stride, torch.device("cpu"))


def _function(name: str, *signature: str) -> DeviceFunction:
    constants = tuple(64 for kind in signature if kind == "constexpr")
    pointers = tuple(n for n, kind in enumerate(signature) if kind.startswith("*"))
    return DeviceFunction(name, "", signature, constants, pointers, warps=4)


@pytest.fixture(scope="module")
def extension() -> Callable[..., int]:
    toolchain = find_toolchain(Options())
    assert isinstance(toolchain, Toolchain)
    launch = load_launcher_for_devices(toolchain, Options()).launch
    assert launch is not launch_by_ctypes
    return launch


@pytest.fixture(params=["extension", "ctypes"])
def launch(request: pytest.FixtureRequest) -> Iterator[Callable[..., int]]:
    yield request.getfixturevalue("extension") if request.param == "extension" else launch_by_ctypes


n = Symbol("n", 0)
X, Y, T = _buffer("x", n), _buffer("y", n), _buffer("t", 100)
S = _buffer("s", dtype=torch.float64)
COPY = _function("copy", "*fp32", "*fp32", "i64", "constexpr", "i32")
SCALE = _function("scale", "fp64", "*fp32")
LOADED = {COPY: LoadedFunction(11, 128, 0, 6), SCALE: LoadedFunction(22, 256, 50000, 4)}
PLACES = Places({X: 0, Y: 1, S: 2}, {T: Slot(64, 400)}, {as_expr(n): 0, as_expr(n) * 3: 1}, 3)
LAUNCHES = (
    Launch(COPY, (as_expr(n), 2, 1), (X, T, as_expr(n) * 3, 5)),
    Launch(SCALE, (7, 1, 1), (S, T)),
    Launch(COPY, (1, 1, 1), (T, Y, as_expr(n), 9)),
)


def _run(
    launch: Callable[..., int],
    driver: FakeDriver,
    size: int,
    launches: tuple[Launch, ...] = LAUNCHES,
    skipped: int = 0,
) -> tuple[int, list[Any]]:
    loaded = {**LOADED, **{one.function: LOADED[COPY] for one in launches if one not in LAUNCHES}}
    plan = encode(launches, loaded, PLACES, driver.entries())
    memory = (ctypes.c_long * len(plan))(*plan)
    table, sizes = (ctypes.c_void_p * 4)(), (ctypes.c_long * 2)(size, 3 * size)
    x, y = torch.zeros(4 + skipped)[skipped:], torch.zeros(4)
    arena = torch.zeros(600, dtype=torch.uint8)
    s = torch.tensor(1.5, dtype=torch.float64)
    addresses = (ctypes.addressof(memory), ctypes.addressof(table), ctypes.addressof(sizes))
    code = launch(*addresses, STREAM, 3, arena, 0, x, 1, y, 2, s)
    return code, [x.data_ptr(), y.data_ptr(), arena.data_ptr()]


def test_what_a_kernel_is_given(launch: Callable[..., int]) -> None:
    driver = FakeDriver({11: 6, 22: 4})
    code, (x, y, arena) = _run(launch, driver, size=10)
    bits = ctypes.c_long.from_buffer(ctypes.c_double(1.5)).value
    assert code == 0
    assert driver.launches == [
        (11, (10, 2, 1, 128, 1, 1, 0), STREAM, [x, arena + 64, 30, 5, 0, 0]),
        (22, (7, 1, 1, 256, 1, 1, 50000), STREAM, [bits, arena + 64, 0, 0]),
        (11, (1, 1, 1, 128, 1, 1, 0), STREAM, [arena + 64, y, 10, 9, 0, 0]),
    ]


def test_an_empty_grid_is_not_started(launch: Callable[..., int]) -> None:
    driver = FakeDriver({11: 6, 22: 4})
    assert _run(launch, driver, size=0)[0] == 0
    assert [call[0] for call in driver.launches] == [22, 11]


def test_an_error_stops_and_is_returned(launch: Callable[..., int]) -> None:
    driver = FakeDriver({11: 6, 22: 4}, codes=[0, 719])
    assert _run(launch, driver, size=1)[0] == 719
    assert len(driver.launches) == 2


def test_a_thread_without_a_context_gets_one(launch: Callable[..., int]) -> None:
    driver = FakeDriver({11: 6, 22: 4}, codes=[201])
    assert _run(launch, driver, size=1)[0] == 0
    assert driver.contexts == [0x1234]
    assert [call[0] for call in driver.launches] == [11, 11, 22, 11]


def test_pointers_that_are_not_aligned(launch: Callable[..., int]) -> None:
    driver = FakeDriver({11: 6, 22: 4})
    assert _run(launch, driver, size=1, skipped=1)[0] == MISALIGNED
    assert not driver.launches
    free = tuple(with_misaligned(one, PLACES, {0}) for one in LAUNCHES)
    assert [one.function.aligned for one in free] == [(1,), (1,), (0, 1)]
    assert aligned_places(free[0], PLACES) == [] and free[1:] == LAUNCHES[1:]
    code, (x, *_) = _run(launch, driver, 1, free, skipped=1)
    assert code == 0 and x % 16 and driver.launches[0][3][0] == x


def test_another_number_of_parameters_is_refused() -> None:
    wrong = {**LOADED, COPY: LoadedFunction(11, 128, 0, 3)}
    with pytest.raises(ValueError, match="takes 3 parameters"):
        encode(LAUNCHES, wrong, PLACES, Entries(0, 0, 0))


def test_arguments_of_the_launcher(extension: Callable[..., int]) -> None:
    with pytest.raises(TypeError, match="place, tensor"):
        extension(1, 2, 3)
