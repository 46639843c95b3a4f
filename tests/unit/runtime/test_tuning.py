"""The quickest of several launches, remembered on disk; the timer is stubbed."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from braze.cache import cache_of
from braze.codegen.triton import alternatives, generate, host_sources
from braze.codegen.triton.candidates import candidate_tilings
from braze.codegen.triton.tiling import plan_tiling
from braze.errors import BuildFailed
from braze.ir.device_model import H200
from braze.ir.kernels.kernel import DeviceFunction, Launch
from braze.ir.kernels.schedule import Kernel
from braze.options import Options
from braze.runtime.cuda import autotune as tuning
from braze.runtime.cuda.autotune import DeviceTimer, choose_launches, key_of
from braze.runtime.cuda.driver_api import LoadedFunction
from braze.schedule import CUDA, schedule
from braze.shapes.expr import Symbol, as_expr
from tests.unit.codegen import programs
from tests.unit.codegen.programs import buffer
from tests.unit.runtime.test_device_plan import FakeDriver


@dataclass
class Timer:
    """Answers by the functions' names; asked: what it was asked."""

    times: dict[str, float]
    asked: list[list[str]] = field(default_factory=list)

    def __call__(self, launches: Sequence[Launch]) -> list[float]:
        self.asked.append([launch.function.name for launch in launches])
        return [self.times[name] for name in self.asked[-1]]


def _launches(*names: str, size: object = 64) -> tuple[Launch, ...]:
    memory = buffer("x", (64,)), buffer("y", (64,))
    made = [DeviceFunction(name, "", ("*fp32", "*fp32"), (), (0, 1), 4) for name in names]
    return tuple([Launch(function, (size, 1, 1), memory) for function in made])  # type: ignore[arg-type]


def _names(chosen: Sequence[tuple[Launch, ...]]) -> list[str]:
    return [launch.function.name for step in chosen for launch in step]


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(mode="max-autotune", cache_dir=tmp_path)


def test_the_quickest_is_chosen_once_for_all(options: Options) -> None:
    timer = Timer({"a": 9.0, "b": 5.0, "c": 7.0})
    steps = [_launches("a", "b", "c"), (), _launches("a", "b", "c")]
    chosen = choose_launches(steps, options, timer)
    assert _names(chosen) == ["b", "b"] and chosen[1] == ()
    assert chosen[2][0] is steps[2][1]  # its own buffers
    assert timer.asked == [["a", "b", "c"]]
    other = Timer({"a": 1.0, "b": 5.0, "c": 7.0})
    assert _names(choose_launches(steps, options, other)) == ["b", "b"] and not other.asked
    kept = cache_of(options).read("tuning", key_of(steps[0]))
    assert kept and json.loads(kept)["microseconds"] == {"a": 9.0, "b": 5.0, "c": 7.0}


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({"a": 9.0, "b": 8.9}, "a"),
        ({"a": math.inf, "b": 8.9}, "b"),
        ({"a": 9.0, "b": math.inf}, "a"),
        ({"a": math.inf, "b": math.inf}, "a"),
    ],
)
def test_the_cost_models_is_left_for_what_is_clearly_quicker(
    options: Options, times: dict[str, float], chosen: str
) -> None:
    assert _names(choose_launches([_launches("a", "b")], options, Timer(times))) == [chosen]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"chosen": "gone"}', '{"chosen": 3}'])
def test_what_cannot_be_read_is_measured_again(options: Options, text: str) -> None:
    timer, steps = Timer({"a": 9.0, "b": 5.0}), [_launches("a", "b")]
    choose_launches(steps, options, timer)
    cache_of(options).write("tuning", key_of(steps[0]), text.encode())
    assert _names(choose_launches(steps, options, timer)) == ["b"] and len(timer.asked) == 2


def test_other_shapes_are_other_choices(options: Options) -> None:
    timer = Timer({"a": 9.0, "b": 5.0})
    first, second = _launches("a", "b"), _launches("a", "b", size=32)
    choose_launches([first, second], options, timer)
    assert len(timer.asked) == 2


def test_symbolic_sizes_and_numbers_are_not_timed(options: Options) -> None:
    timer = Timer({})
    symbolic = _launches("a", "b", size=as_expr(Symbol("s0", 2, None)))
    number = tuple(
        [
            replace(x, function=replace(x.function, signature=("fp32", "*fp32")))
            for x in _launches("a", "b")
        ]
    )
    chosen = choose_launches([symbolic, number, _launches("a")], options, timer)
    assert _names(chosen) == ["a", "a", "a"] and not timer.asked


def test_without_a_device_the_first_is_taken(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _names(choose_launches([_launches("a", "b")], options)) == ["a"]
    assert not list(options.cache_dir.iterdir())


PROGRAMS = {
    "softmax": programs.softmax(4096, 1024, torch.bfloat16),
    "long softmax": programs.softmax(512, 131072, torch.bfloat16),
    "column sum": programs.reduction("sum", (16384, 4096), (1,)),
    "transpose": programs.transposed_add(4096, 4096),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_candidates(name: str) -> None:
    options = Options()
    plan = schedule(PROGRAMS[name], options, CUDA)
    for step in plan.steps:
        assert isinstance(step, Kernel)
        found = candidate_tilings(step, H200)
        assert found[0] == plan_tiling(step, H200)
        assert 3 <= len({*found}) == len(found) <= 24
        assert all(1 <= x.warps <= 32 for x in found)
    ways = alternatives(plan, options)
    first = host_sources(plan, [launches[:1] for launches in ways])
    right = generate(plan, options)
    assert [x.function for s in first.launches for x in s] == [
        x.function for s in right.launches for x in s
    ]


# --- the device's timer, against a driver that writes down its calls -----------------------------


class Event:
    """Times are the launches between two events."""

    driver: FakeDriver

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        self.at = len(self.driver.launches)

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return float(end.at - self.at) / 1e3


def test_a_device_times_what_can_be_built_and_started(
    monkeypatch: pytest.MonkeyPatch, options: Options
) -> None:
    driver = FakeDriver({1: 2, 2: 2, 3: 2})
    handles = {"a": 1, "b": 2, "refused": 3}

    def build(functions: Sequence[DeviceFunction], _: int, __: Options) -> dict[object, str]:
        if any(function.name == "too large" for function in functions):
            raise BuildFailed(("triton.compile",), "too much shared memory")
        return {function: function.name for function in functions}

    def load(cubin: str) -> LoadedFunction:
        return LoadedFunction(handles[cubin], 128, 0, 2)

    entries = driver.entries()
    fake = SimpleNamespace(
        load=load,
        context=entries.context,
        address={"cuLaunchKernel": entries.launch, "cuCtxSetCurrent": entries.set_context}.get,
    )
    monkeypatch.setattr(tuning, "build_cubins", build)
    monkeypatch.setattr(tuning, "DRIVERS", SimpleNamespace(of=lambda index: fake))
    monkeypatch.setattr(tuning, "CACHE_BYTES", 64)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    stream = SimpleNamespace(cuda_stream=0x77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "Event", type("OneEvent", (Event,), {"driver": driver}))
    timer = DeviceTimer(options)
    assert timer(_launches("a", "b")) == [1.0, 1.0]
    assert {(function, stream) for function, _, stream, _ in driver.launches} == {
        (1, 0x77),
        (2, 0x77),
    }
    assert len({tuple(values) for *_, values in driver.launches}) == 1
    assert timer(_launches("a", "too large")) == [1.0, math.inf]
    driver.codes.append(701)
    assert timer(_launches("refused", "b")) == [math.inf, 1.0]
