"""The launch program of a device, against a driver whose kernels are Python on the host's memory.

Pointers, sizes, the arena, segments and the order of work are real; only the arithmetic of a
kernel is not generated code.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch

from braze.codegen.segments import host_sources
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.graphs.joint_graph import Role
from braze.ir.kernels.kernel import DeviceFunction, KernelSources, Launch
from braze.ir.kernels.loops import ExternCall, LoopProgram
from braze.ir.kernels.scalars import apply, loads
from braze.ir.kernels.schedule import Kernel, Schedule
from braze.options import Options
from braze.runtime.cuda import device_arena
from braze.runtime.cuda.cubin_cache import Cubin
from braze.runtime.cuda.cublas_workspace import Scratch
from braze.runtime.cuda.driver_api import CudaError, LoadedFunction
from braze.runtime.cuda_graphs.capture_trials import CallLog
from braze.runtime.cuda_graphs.warmup_pool import MemoryApart
from braze.runtime.launch import launch_program as program_module
from braze.runtime.launch.cpp_compiler import NoCompiler
from braze.runtime.launch.split_program import in_parts
from braze.runtime.link import link_cuda as link_device
from braze.schedule import schedule
from braze.shapes.expr import Symbol, as_expr
from tests.unit.codegen.programs import axes, buffer, define, load, pointwise, program, view
from tests.unit.codegen.running import OPTIONS
from tests.unit.runtime.test_recorded_graph import FakeRecording

_P, _U = ctypes.c_void_p, ctypes.c_uint
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, _P, *[_U] * 7, _P, ctypes.POINTER(_P), _P)
DEVICE = torch.device("cpu", 0)
STREAM = 99


def _floats(address: int, count: int) -> torch.Tensor:
    memory = (ctypes.c_float * count).from_address(address)
    return torch.frombuffer(memory, dtype=torch.float32)


@dataclass
class FakeDriver:
    """Runs the kernel `name(source, target, count)` in Python."""

    kernels: dict[str, Callable[[torch.Tensor], torch.Tensor]]
    context: int = 0
    code: int = 0
    library: None = None
    names: list[str] = field(default_factory=list)
    started: list[tuple[str, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._callback = _LAUNCH(self._launch)

    def load(self, cubin: Cubin) -> LoadedFunction:
        self.names.append(cubin.name)
        return LoadedFunction(len(self.names), 32, 0, cubin.parameters)

    def address(self, name: str) -> int:
        return ctypes.cast(self._callback, _P).value or 0

    def describe(self, code: int) -> str:
        return f"CUDA_ERROR_FAKE ({code})"

    def of(self, index: int) -> FakeDriver:
        assert index == 0
        return self

    def _launch(self, function: int, grid: int, *rest: Any) -> int:
        *_, stream, pointers, _ = rest
        name = self.names[function - 1]
        source, target, count = (ctypes.c_long.from_address(pointers[n]).value for n in range(3))
        self.started.append((name, grid, stream))
        if not self.code:
            made = self.kernels[name.split("/")[0]](_floats(source, count))
            _floats(target, count).copy_(made)
        return self.code


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    made = FakeDriver({"twice": lambda x: 2 * x, "next": lambda x: x + 1})

    def built(functions: Any, architecture: int, options: Any) -> dict[DeviceFunction, Cubin]:
        assert architecture == 90
        names = {f: f"{f.name}/{''.join(map(str, f.aligned))}" for f in functions}
        return {f: Cubin(names[f], b"", 32, 0, 5) for f in functions}

    monkeypatch.setattr(link_device, "DRIVERS", made)
    monkeypatch.setattr(link_device, "build_cubins", built)
    monkeypatch.setattr(link_device, "triton_version", lambda: "1")
    monkeypatch.setattr(link_device, "total_memory", lambda device: 1 << 34)
    monkeypatch.setattr(link_device, "prepare_room", lambda *_: None)
    monkeypatch.setattr(link_device, "current_stream", lambda index: STREAM + index)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    yield made


def _function(name: str) -> DeviceFunction:
    return DeviceFunction(name, "", ("*fp32", "*fp32", "i64"), (), (0, 1), warps=1)


def _linked(
    made: LoopProgram, names: list[str], takes_inputs: bool = False, options: Options = OPTIONS
) -> GraphCallable:
    plan = schedule(made, OPTIONS)
    role = Role(takes_inputs)
    linked = link_device.link_device(plan, launched(plan, names), options, DEVICE, role)
    assert not isinstance(linked, NoCompiler)
    return linked


def launched(plan: Schedule, names: Iterable[str]) -> KernelSources:
    """The plan's kernels, by functions of these names: one of each store, whose value is computed
    of one buffer's."""
    waiting = iter(names)
    launches = []
    for step in plan.steps:
        starts = []
        if isinstance(step, Kernel):
            size = as_expr(1)
            for _, length in (*step.rows, *step.phases[0].loops):
                size = size * length
            for stored in step.phases[0].body:
                if stored.target not in step.memory:
                    continue  # nobody reads it
                (source,) = {part.buffer for part in loads(stored.value)}
                arguments = (source, stored.target, size)
                starts.append(Launch(_function(next(waiting)), (size, 1, 1), arguments))
        launches.append(tuple(starts))
    return host_sources(plan, launches)


def _with_product(size: int) -> LoopProgram:
    """y = 2x @ w + 1, with the product as an extern call."""
    shape = (size, size)
    x, w, a, p, y = (buffer(name, shape) for name in ("x", "w", "a", "p", "y"))
    (i, _), (j, _) = over = axes(shape)
    call = ExternCall(torch.ops.aten.mm.default, (view(a), view(w)), (), (p,))
    statements = [
        define(a, over, apply("mul", load(x, i, j), 2.0)),
        call,
        define(y, over, apply("add", load(p, i, j), 1.0)),
    ]
    return program([x, w], statements, [y])


def test_kernels_around_an_extern_call(driver: FakeDriver) -> None:
    function = _linked(_with_product(16), ["twice", "next"])
    for _ in range(3):
        x, w = torch.randn(16, 16), torch.randn(16, 16)
        (y,) = function([x, w])
        torch.testing.assert_close(y, 2 * x @ w + 1)
    assert [name for name, *_ in driver.started] == ["twice/01", "next/01"] * 3
    assert {stream for *_, stream in driver.started} == {STREAM}


def test_the_arena_belongs_to_a_call(driver: FakeDriver) -> None:
    function = _linked(_with_product(4), ["twice", "next"])
    text = function.text  # type: ignore[attr-defined]
    assert "stream = current_stream(0)" in text and "kept = arenas.get(stream)" in text
    assert "arena, arena0, arena1, = kept" in text
    assert "fault, t2, = launch_making(segment1, made1, table, sizes, stream)" in text


@pytest.mark.parametrize("stream, times", [(0, 1), (STREAM, 3)])
def test_a_small_arena_is_kept_on_the_default_stream(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, stream: int, times: int
) -> None:
    monkeypatch.setattr(link_device, "current_stream", lambda index: stream)
    made = _count_arenas(monkeypatch)
    function = _linked(_with_product(8), ["twice", "next"])
    for _ in range(3):
        x, w = torch.randn(8, 8), torch.randn(8, 8)
        torch.testing.assert_close(function([x, w])[0], 2 * x @ w + 1)
    assert len(made) == times


def test_a_large_arena_goes_back(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_device, "current_stream", lambda index: 0)
    monkeypatch.setattr(device_arena, "KEPT", 1000)
    made = _count_arenas(monkeypatch)
    function = _linked(_with_product(16), ["twice", "next"])
    for _ in range(3):
        x, w = torch.randn(16, 16), torch.randn(16, 16)
        torch.testing.assert_close(function([x, w])[0], 2 * x @ w + 1)
    assert len(made) == 3


def test_no_arena_is_kept_beside_something_large(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_device, "current_stream", lambda index: 0)
    made = _count_arenas(monkeypatch)
    function = _linked(_with_product(8), ["twice", "next"])
    monkeypatch.setattr(device_arena, "_LARGE", 256)
    other = _linked(_with_product(8), ["twice", "next"])
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    for call, arenas in ((function, 1), (other, 3)):
        made.clear()
        for _ in range(3):
            torch.testing.assert_close(call([x, w])[0], 2 * x @ w + 1)
        assert len(made) == arenas


def test_a_large_arena_goes_before_what_does_not_need_it(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits of a language model would be made beside it."""
    monkeypatch.setattr(link_device, "current_stream", lambda index: 0)
    monkeypatch.setattr(device_arena, "KEPT", 1000)
    plan = _with_product(16)
    w, z = plan.inputs[1], buffer("z", (16, 16))
    call = ExternCall(torch.ops.aten.mm.default, (view(w), view(w)), (), (z,))
    plan = replace(plan, statements=(*plan.statements, call), outputs=(*plan.outputs, view(z)))
    arenas = _watched_arenas(monkeypatch)
    function = _linked(plan, ["twice", "next"])
    lines = function.text.splitlines()  # type: ignore[attr-defined]
    (gone,) = [n for n, line in enumerate(lines) if line.strip().startswith("del kept, arena, ")]
    assert "op3(" in lines[gone + 1], "the last product comes behind it"
    x, w_values = torch.randn(16, 16), torch.randn(16, 16)
    found = function([x, w_values])
    torch.testing.assert_close(found, [2 * x @ w_values + 1, w_values @ w_values])
    assert arenas and arenas[0]() is None


@pytest.mark.parametrize("longest", [2, 3, 5, 500])
def test_an_arena_lasts_until_its_last_kernel(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    """Kernels know it by its address alone. A program in parts let go of it where its name stood
    last, and what a later kernel read of it was something else's by then: a recorded forward of 300
    steps was wrong so."""
    monkeypatch.setattr(program_module, "in_parts", partial(in_parts, longest=longest))
    plan = _with_product(16)
    first, call, last = plan.statements
    w, q = plan.inputs[1], buffer("q", (16, 16))
    between = ExternCall(torch.ops.aten.mm.default, (view(w), view(w)), (), (q,))
    statements = (first, call, between, last)
    plan = replace(plan, statements=statements, outputs=(*plan.outputs, view(q)))
    arenas = _watched_arenas(monkeypatch)
    alive = []

    def following(x: torch.Tensor) -> torch.Tensor:
        alive.append(arenas[-1]() is not None)
        return x + 1

    driver.kernels["next"] = following
    function = _linked(plan, ["twice", "next"])
    x, w_values = torch.randn(16, 16), torch.randn(16, 16)
    found = function([x, w_values])
    assert alive == [True]
    torch.testing.assert_close(found, [2 * x @ w_values + 1, w_values @ w_values])
    assert arenas[-1]() is None, "it is no longer needed"


def _watched_arenas(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[torch.Tensor]]:
    arenas: list[weakref.ref[torch.Tensor]] = []
    new = device_arena.DeviceArena.new

    def noted(self: Any, kept: Any, stream: int) -> Any:
        made = new(self, kept, stream)
        arenas.append(weakref.ref(made[0]))
        return made

    monkeypatch.setattr(device_arena.DeviceArena, "new", noted)
    return arenas


def _count_arenas(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    new = device_arena.DeviceArena.new

    def counted(self: Any, arenas: Any, stream: int) -> Any:
        made.append(new(self, arenas, stream))
        return made[-1]

    monkeypatch.setattr(device_arena.DeviceArena, "new", counted)
    return made


def test_sizes_reach_the_launch(driver: FakeDriver) -> None:
    shape = (as_expr(Symbol("n", 0)), 3)
    x, y = buffer("x", shape, stride=(3, 1)), buffer("y", shape, stride=(3, 1))  # type: ignore[arg-type]
    (i, _), (j, _) = over = axes(shape)  # type: ignore[arg-type]
    body = apply("add", load(x, i, j), 1.0)
    function = _linked(program([x], [define(y, over, body)], [y]), ["next"])
    for rows in (2, 5, 0):
        values = torch.randn(rows, 3)
        torch.testing.assert_close(function([values])[0], values + 1)
    assert [grid for _, grid, _ in driver.started] == [6, 15]


def test_misaligned_inputs_have_other_kernels(driver: FakeDriver) -> None:
    function = _linked(pointwise((8,), lambda x: apply("add", x, 1.0)), ["next"])
    memory = torch.randn(40)
    for start in (0, 1, 2, 4, 1):
        x = memory[start : start + 8]
        torch.testing.assert_close(function([x])[0], x + 1)
    aligned, free = "next/01", "next/1"
    assert [name for name, *_ in driver.started] == [aligned, free, free, aligned, free]
    assert driver.names == [aligned, free]


def test_a_refused_launch_raises(driver: FakeDriver) -> None:
    function = _linked(pointwise((8,), lambda x: apply("add", x, 1.0)), ["next"])
    driver.code = 701
    with pytest.raises(CudaError, match=r"not started: CUDA_ERROR_FAKE \(701\)"):
        function([torch.randn(8)])
    driver.code = 0
    torch.testing.assert_close(function([torch.zeros(8)])[0], torch.ones(8))


def test_inputs_may_be_taken_over(driver: FakeDriver) -> None:
    function = _linked(_with_product(4), ["twice", "next"], takes_inputs=True)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    inputs = [x, w]
    torch.testing.assert_close(function(inputs)[0], 2 * x @ w + 1)
    assert inputs == []


class FakePool:
    """What recordings share, without a device."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")  # where the tensors of these tests are
        self.recording = contextlib.nullcontext()
        self.addresses: set[int] = set()
        self.apart = MemoryApart(DEVICE)

    def of(self, device: torch.device) -> FakePool:
        return self

    def prepare(self, scratch: Scratch, is_lent: bool) -> None: ...

    def lender(self, inputs: list[torch.Tensor]) -> None: ...


@pytest.mark.parametrize("takes_inputs", [False, True])
def test_calls_are_recorded(
    takes_inputs: bool, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first call runs as compiled; the second is recorded, and its replays are those from then
    on."""
    made: list[FakeRecording] = []

    def recorded(call: Any, log: Any, inputs: Any, moving: Any, *rest: Any) -> FakeRecording:
        made.append(FakeRecording([x.data_ptr() for x in inputs], moving))
        return made[-1]

    monkeypatch.setattr(link_device, "Recording", recorded)
    monkeypatch.setattr(link_device, "POOLS", FakePool())
    monkeypatch.setattr(link_device, "free_memory", lambda _: 1 << 40)
    monkeypatch.setattr(CallLog, "check_host", lambda log, graph: None)
    monkeypatch.setattr(link_device, "outside_of_capture", lambda *_: torch.empty_strided)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    recording = replace(OPTIONS, mode="reduce-overhead")
    function = _linked(_with_product(4), ["twice", "next"], takes_inputs, recording)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    torch.testing.assert_close(function([x, w])[0], 2 * x @ w + 1)
    assert not made
    for _ in range(2):
        assert function([x, w]) == ["replayed"]
    assert [recording.replays for recording in made] == [2]


def test_without_triton(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_device, "triton_version", lambda: None)
    plan = schedule(pointwise((8,), lambda x: x), OPTIONS)
    launches: list[Any] = [() for _ in plan.steps]
    made = link_device.link_device(plan, host_sources(plan, launches), OPTIONS, DEVICE)
    assert isinstance(made, NoCompiler)
    assert "pip install triton" in made.reason
