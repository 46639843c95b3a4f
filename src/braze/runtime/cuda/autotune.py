"""`mode="max-autotune"`: of the ways to launch a kernel, the quickest on this device.

    alternatives of a step      names of their functions, shapes, device -> one key
    <cache>/tuning/<key>        {"chosen": "k_12ab...", "microseconds": {"k_12ab...": 8.1, ...}}

What was chosen once is chosen on every run, and nothing is timed for it again. The cost model's
choice, the first, is left only for what is clearly quicker. Times are of single launches on memory
of their own, zeros, with the second-level cache emptied before each. Kernels with symbolic sizes
or with numbers from the CPU are not timed.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import torch

from braze.cache import cache_of
from braze.errors import BuildFailed, CannotBuild
from braze.ir.kernels.kernel import DeviceFunction, Launch
from braze.ir.kernels.loops import Buffer
from braze.options import Options
from braze.runtime.cuda.cubin_cache import Cubin, build_cubins, triton_version
from braze.runtime.cuda.driver_api import DRIVERS, CudaError
from braze.runtime.cuda.launch_plan import Entries, Places, encode, launch_by_ctypes
from braze.shapes.expr import constant_value

TUNING_MODES = ("max-autotune", "max-autotune-no-cudagraphs")
# Launches of one kernel -> microseconds of each; infinite where one cannot run.
Measure: TypeAlias = Callable[[Sequence[Launch]], Sequence[float]]

# Starts work on the current stream -> the driver's code.
Start: TypeAlias = Callable[[], int]

_CLEARLY = 0.97  # of the cost model's time
_LAUNCHES = 9
_MOST_BYTES = 8 << 30  # of a kernel's memory
CACHE_BYTES = 256 << 20  # more than any second-level cache
# Times that the cache is emptied, a tenth of a millisecond each: until then the host has started
# what is timed, a library's call of several kernels, too.
_FLUSHES = 3
_LOG = logging.getLogger("braze.perf_hints")


def choose_launches(
    alternatives: Sequence[tuple[Launch, ...]], options: Options, measure: Measure | None = None
) -> list[tuple[Launch, ...]]:
    """The launch of each step, () where it has none. measure: the device's, if not given; where
    there is no device, or no Triton, the first of each."""
    if measure is None:
        if triton_version() is None or not torch.cuda.is_available():
            return [launches[:1] for launches in alternatives]
        measure = DeviceTimer(options)
    chosen: dict[str, str] = {}
    made = []
    for launches in alternatives:
        if len(launches) < 2 or not is_timed(launches[0]):
            made.append(launches[:1])
            continue
        key = key_of(launches)
        if key not in chosen:
            names = [launch.function.name for launch in launches]
            times = functools.partial(measure, launches)
            chosen[key] = remembered(key, options, names, times)
        made.append(tuple([x for x in launches if x.function.name == chosen[key]][:1]))
    return made


def is_timed(launch: Launch) -> bool:
    """Whether all its sizes are known, and nothing comes from the CPU."""
    buffers = [x for x in launch.arguments if isinstance(x, Buffer)]
    sizes = [x for x in (*launch.grid, *launch.arguments) if not isinstance(x, Buffer)]
    sizes += [n for b in buffers for n in (*b.shape, *b.stride)]
    known = all(constant_value(size) is not None for size in sizes)
    pointers = all(kind.startswith("*") for kind in launch.function.signature[: len(buffers)])
    return known and pointers and sum(map(_bytes, buffers)) <= _MOST_BYTES


def remembered(
    key: str, options: Options, names: Sequence[str], measure: Callable[[], Sequence[float]]
) -> str:
    """One of the names, from the cache or measured; the first is left for clearly quicker ones."""

    def measured() -> bytes:
        times = dict(zip(names, measure(), strict=True))
        best = min(times, key=times.__getitem__)
        found = best if times[best] < _CLEARLY * times[names[0]] else names[0]
        text = f"{found}: {times[found]:.1f} µs, {names[0]}: {times[names[0]]:.1f}"
        _LOG.info("%s", text, extra={"origin": "", "artefact": "perf_hints"})
        finite = {name: time for name, time in times.items() if math.isfinite(time)}
        return json.dumps({"chosen": found, "microseconds": finite}).encode()

    def accepts(content: bytes) -> bool:
        return _chosen(content) in names

    limit = options.build_timeout
    return _chosen(cache_of(options).obtain("tuning", key, measured, limit, accepts))


def key_of(launches: Sequence[Launch], beside: Sequence[str] = ()) -> str:
    """What a choice is remembered by: names of functions stand for their texts and constants."""
    buffers = [x for x in launches[0].arguments if isinstance(x, Buffer)]
    facts = [f"{x.function.name} {x.function.warps} {x.grid}" for x in launches]
    facts += [f"{b.dtype} {b.shape} {b.stride}" for b in buffers]
    facts += beside
    facts += [str(triton_version()), _device_name(buffers[0].device)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def elements(buffer: Buffer) -> int:
    """From the first one to the last in memory."""
    steps = zip(map(_known, buffer.shape), map(_known, buffer.stride), strict=True)
    return 1 + sum((size - 1) * step for size, step in steps if size > 0)


# --- private ---------------------------------------------------------------------------------


def _known(size: Any) -> int:
    found = constant_value(size)
    assert found is not None, size
    return found


def _bytes(buffer: Buffer) -> int:
    return elements(buffer) * buffer.dtype.itemsize


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _chosen(content: bytes) -> str:
    """The choice in a content; "" where there is none."""
    try:
        chosen = json.loads(content)["chosen"]
    except (ValueError, KeyError, TypeError):
        return ""
    return chosen if isinstance(chosen, str) else ""


@final
class DeviceTimer:
    """A `Measure` by the device that the launches' buffers are on."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def __call__(self, launches: Sequence[Launch]) -> list[float]:
        """Microseconds of each launch."""
        buffers = list(dict.fromkeys(b for b in launches[0].arguments if isinstance(b, Buffer)))
        device = buffers[0].device
        with torch.cuda.device(device):
            cubins = self.built([launch.function for launch in launches], device)
            try:
                memory = {
                    b: torch.zeros(elements(b), dtype=b.dtype, device=device) for b in buffers
                }
                flushed = torch.empty(CACHE_BYTES, dtype=torch.uint8, device=device)
            except torch.OutOfMemoryError:
                return [math.inf] * len(launches)
            starts = [self.start_of(x, cubins.get(x.function), memory) for x in launches]
            return [median_time(start, flushed) for start in starts]

    def built(
        self, functions: Sequence[DeviceFunction], device: torch.device
    ) -> dict[DeviceFunction, Cubin]:
        """What can be built: some need more shared memory or registers than there are."""
        major, minor = torch.cuda.get_device_capability(device)
        architecture = 10 * major + minor
        try:
            return build_cubins(functions, architecture, self._options)
        except (BuildFailed, CannotBuild):
            found: dict[DeviceFunction, Cubin] = {}
            for function in functions:
                try:
                    found |= build_cubins([function], architecture, self._options)
                except (BuildFailed, CannotBuild) as error:
                    _LOG.info("%s", error, extra={"origin": "", "artefact": "perf_hints"})
            return found

    def start_of(
        self, launch: Launch, cubin: Cubin | None, memory: Mapping[Buffer, torch.Tensor]
    ) -> Start | None:
        """What starts it on that memory and returns the driver's code; None where it cannot run."""
        device = next(iter(memory.values())).device
        driver = DRIVERS.of(device.index)
        if cubin is None:
            return None
        try:
            loaded = driver.load(cubin)
        except CudaError:
            return None
        places = Places({b: n for n, b in enumerate(memory)}, {}, {}, -1)
        entries = Entries(
            driver.address("cuLaunchKernel"), driver.address("cuCtxSetCurrent"), driver.context
        )
        numbers = encode([launch], {launch.function: loaded}, places, entries)
        plan = (ctypes.c_long * len(numbers))(*numbers)
        table = (ctypes.c_long * len(memory))(*[x.data_ptr() for x in memory.values()])
        stream = torch.cuda.current_stream(device).cuda_stream

        def start(held: object = (plan, table)) -> int:
            return launch_by_ctypes(ctypes.addressof(plan), ctypes.addressof(table), 0, stream)

        return start


def median_time(start: Start | None, flushed: torch.Tensor) -> float:
    """Microseconds of a start, the cache emptied before each; infinite where it fails."""
    if start is None:
        return math.inf
    stream = torch.cuda.current_stream(flushed.device)
    times: list[float] = []
    for _ in range(_LAUNCHES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(_FLUSHES):
            flushed.zero_()
        begin.record(stream)
        code = start()
        end.record(stream)
        if code:
            return math.inf
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times[1:])[(_LAUNCHES - 1) // 2]
