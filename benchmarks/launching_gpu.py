"""What a call costs the host, by the number of its kernels: Braze, torch.compile and eager, beside
empty kernels that the driver starts.

    python -m benchmarks.launching_gpu [--rounds 30]

A chain of softmaxes over changing dimensions is one kernel each. Calls are made without waiting for
the device, fewer at a time than it queues. The slope over the number of kernels is what one more
kernel costs; what is left of a call is its own: guards, results, the way there. Parts of it are
timed by themselves below. Microseconds, medians.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import braze
from benchmarks.kernels_gpu import trace
from benchmarks.kernels_gpu_cases import Case, Input
from braze.compat.torch.cuda import current_stream
from braze.ir.kernels.kernel import DeviceFunction, Launch
from braze.ir.kernels.schedule import Kernel
from braze.options import config
from braze.runtime.cuda.cubin_cache import build_cubins
from braze.runtime.cuda.driver_api import DRIVERS
from braze.runtime.cuda.launch_plan import Entries, Places, encode
from braze.runtime.cuda.output_allocation import load_launcher_for_devices
from braze.runtime.launch.cpp_compiler import NoCompiler, find_toolchain

Call = Callable[[], Any]
COUNTS = (1, 5, 17, 33)
SHAPE = (64, 64)
_QUEUED = 400  # launches at once: the device's queue holds about a thousand
_EMPTY = (
    "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k_empty(p0):\n    pass\n"
)


def chain(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of so many kernels."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for number in range(count):
            x = torch.softmax(x, number % 2)
        return x

    return run


def chain_values(count: int) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    """All values of the chain, as results."""

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        found = [x]
        for number in range(count):
            found.append(torch.softmax(found[-1], number % 2))
        return found[1:]

    return run


def kernels_of(count: int) -> int:
    """How many kernels Braze makes of the chain."""
    plan, _ = trace(Case("chain", chain(count), (Input(SHAPE, torch.float32),)))
    return sum(isinstance(step, Kernel) for step in plan.steps)


def host_times(calls: Mapping[str, tuple[Call, int]], rounds: int) -> dict[str, float]:
    """Microseconds of each call, which starts so many kernels: medians of interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 2):
        for name, (call, kernels) in calls.items():
            repeats = max(4, _QUEUED // kernels)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(repeats):
                call()
            times[name].append(1e6 * (time.perf_counter() - began) / repeats)
            torch.cuda.synchronize()
    return {name: statistics.median(found[2:]) for name, found in times.items()}


def line(times: Mapping[int, float]) -> tuple[float, float]:
    """What a kernel costs, and what a call does beside: the line through the least squares."""
    slope, left = statistics.linear_regression(list(times), list(times.values()))
    return slope, left


def empty_launches(count: int) -> Call:
    """So many empty kernels, by the launcher that compiled graphs use."""
    options = config.snapshot()
    device = torch.device("cuda", torch.cuda.current_device())
    function = DeviceFunction("k_empty", _EMPTY, ("*fp32",), (), (0,), 4)
    major, minor = torch.cuda.get_device_capability(device)
    driver = DRIVERS.of(device.index)
    cubins = build_cubins([function], 10 * major + minor, options)
    entries = Entries(
        driver.address("cuLaunchKernel"), driver.address("cuCtxSetCurrent"), driver.context
    )
    x = torch.zeros(64, device=device)
    (buffer,) = trace(Case("one", torch.exp, (Input((64,), torch.float32),)))[0].inputs
    launches = [Launch(function, (1, 1, 1), (buffer,))] * count
    loaded = {function: driver.load(cubins[function])}
    numbers = encode(launches, loaded, Places({buffer: 0}, {}, {}, -1), entries)
    plan = (ctypes.c_long * len(numbers))(*numbers)
    table, sizes = (ctypes.c_long * 2)(x.data_ptr()), (ctypes.c_long * 1)()
    found = find_toolchain(options)
    toolchain = None if isinstance(found, NoCompiler) else found
    launch = load_launcher_for_devices(toolchain, options).launch
    at = [ctypes.addressof(memory) for memory in (plan, table, sizes)]

    def call(held: object = (plan, table, sizes)) -> int:
        return launch(*at, current_stream(device.index), 0, x)

    return call


def parts(x: torch.Tensor) -> dict[str, Call]:
    """What a call does, each part alone."""

    def nothing(module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        made = module(*inputs)
        return lambda *_: made

    guarded = braze.compile(chain(1), backend=nothing)
    replayed = [braze.compile(chain_values(COUNTS[-1]), mode="reduce-overhead") for _ in range(2)]
    held: list[Any] = [None]

    def moved() -> None:
        held[0] = replayed[1](x)  # the last results go when the next are there

    index = torch.cuda.current_device()
    return {
        "guards and dispatch": lambda: guarded(x),
        "the result's memory": lambda: torch.empty_strided(
            SHAPE, (SHAPE[1], 1), dtype=x.dtype, device=x.device
        ),
        "the current stream": lambda: current_stream(index),
        "eager, one kernel": lambda: torch.softmax(x, 0),
        f"a replay of {COUNTS[-1]} results where the last were": lambda: replayed[0](x),
        "the same, elsewhere each time": moved,
    }


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args(arguments).rounds
    x = torch.randn(SHAPE, device="cuda")
    systems: dict[str, dict[int, Call]] = {
        "eager": {n: _bound(chain(n), x) for n in COUNTS},
        "torch.compile": {n: _bound(torch.compile(chain(n)), x) for n in COUNTS},
        "Braze": {n: _bound(braze.compile(chain(n), mode="default"), x) for n in COUNTS},
        "empty kernels": {n: empty_launches(n) for n in COUNTS},
    }
    kernels = {n: kernels_of(n) for n in COUNTS}
    calls = {f"{s} {n}": (c, kernels[n]) for s, by in systems.items() for n, c in by.items()}
    with torch.no_grad():
        for call, _ in calls.values():
            for _ in range(5):
                call()
        times = host_times(calls, rounds)
        alone = host_times({name: (call, 1) for name, call in parts(x).items()}, rounds)
    counts = " | ".join(f"{kernels[n]} kernels" for n in COUNTS)
    print(f"| host, us | {counts} | a kernel | a call |")
    print("|---" * (len(COUNTS) + 3) + "|")
    for system in systems:
        found = {kernels[n]: times[f"{system} {n}"] for n in COUNTS}
        cells = [f"{value:.2f}" for value in (*found.values(), *line(found))]
        print(f"| {system} | {' | '.join(cells)} |")
    for name, value in alone.items():
        print(f"{name}: {value:.2f} us")


def _bound(function: Callable[..., Any], x: torch.Tensor) -> Call:
    return lambda: function(x)


if __name__ == "__main__":
    main()
