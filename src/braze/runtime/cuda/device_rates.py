"""What a GPU reaches: a few milliseconds of measuring a rate, once a card and driver.

    <cache>/rates/<key>    {"rate": 2.9e12}    key: card, driver, PyTorch, rate

Memory for it comes from the driver, not from PyTorch's allocator, so that the program's counts of
what it uses stay what they were. A rate is the best of a few runs, to two digits: other work on the
device slows some of them, and decisions should not differ by noise. Where a rate cannot be measured
(no memory, deterministic algorithms, a driver that refuses), nothing is kept, and the table holds.
The rate of products waits until the process has loaded the library for products of its own: loading
it takes some tenths of a second, a measurement some milliseconds. Until then the table holds, or
what an earlier process kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, final

import torch

from braze.compat.torch.cuda import storage_at
from braze.compat.torch.grad_mode import without_autocast
from braze.compat.torch.versions import TORCH
from braze.ir.device_rates import NOT_YET, Measured, Rate
from braze.options import Options, config
from braze.runtime.cuda.cublas_workspace import PRODUCTS_LOADED
from braze.runtime.cuda.driver_api import DRIVERS, CudaDriver
from braze.runtime.launch.kept_measurements import kept_measurement, note_measurement

_COPIED = 128 << 20  # bytes: more than any second-level cache
_PRODUCT = 4096  # rows, columns and summed
_LAUNCHES = 128
_SECONDS = 0.01  # of runs of one rate, without the first one
_MOST_RUNS = 5
_VERSION = 1  # of what is measured
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


@final
class LibraryNotLoaded(RuntimeError):
    """A measurement would load a library that the program has not used yet."""


class Probe(Protocol):
    """What can be measured of a device; each raises RuntimeError or OSError where it cannot, and
    LibraryNotLoaded where it cannot yet."""

    def copy(self) -> float:
        """Bytes a second that a copy reads and writes."""

    def launch(self) -> float:
        """Seconds of starting a kernel."""

    def products(self) -> float:
        """Operations a second of a product of half types."""


def measured_rate(probe: Probe, rate: Rate, facts: tuple[str, ...], options: Options) -> Measured:
    """A rate, from the cache or measured. facts: of card and driver."""
    try:
        return kept_measurement(
            "rate",
            (_VERSION, TORCH, rate, *facts),
            lambda: _rounded(getattr(probe, rate)()),
            lambda found: f"{facts[0]}: {rate} of {found:.2g}",
            options,
        )
    except LibraryNotLoaded:
        return NOT_YET
    except (RuntimeError, OSError) as error:
        note_measurement(f"{facts[0]}: {rate} cannot be measured: {error}")
        return None


def measure(device: torch.device, rate: Rate) -> Measured:
    """A rate of a CUDA device; None where it has no driver, NOT_YET while the program captures a
    graph."""
    if torch.cuda.is_current_stream_capturing():
        return NOT_YET
    index = torch.cuda.current_device() if device.index is None else device.index
    try:
        probe = CudaProbe(DRIVERS.of(index), torch.device("cuda", index))
    except (RuntimeError, OSError):
        return None
    return measured_rate(probe, rate, probe.facts(), config.snapshot())


@final
class CudaProbe:
    """A CUDA device, measured through its driver and by PyTorch's products."""

    def __init__(self, driver: CudaDriver, device: torch.device) -> None:
        self._driver, self._device = driver, device
        self._library = driver.library

    def copy(self) -> float:
        """Bytes a second that a copy reads and writes."""
        copy = self._library.cuMemcpyDtoDAsync_v2
        with self._ready(), self._memory(2 * _COPIED) as start, self._stream() as stream:
            source, target = ctypes.c_uint64(start), ctypes.c_uint64(start + _COPIED)
            size = ctypes.c_size_t(_COPIED)

            def run() -> None:
                for _ in range(4):
                    self._driver.check(copy(target, source, size, stream))

            return 4 * 2 * _COPIED / self._least_on_device(run, stream)

    def launch(self) -> float:
        """Seconds of starting a kernel, without what the call costs in Python."""
        fill, nothing = self._library.cuMemsetD32Async, self._library.cuDriverGetVersion
        with self._ready(), self._memory(4096) as start, self._stream() as stream:
            place, zero, one = ctypes.c_uint64(start), ctypes.c_uint(0), ctypes.c_size_t(1)
            version = ctypes.byref(ctypes.c_int())

            def fills() -> None:
                for _ in range(_LAUNCHES):
                    fill(place, zero, one, stream)
                self._driver.check(self._library.cuStreamSynchronize(stream))

            def calls() -> None:
                for _ in range(_LAUNCHES):
                    nothing(version)

            spent = _least(lambda: _host_seconds(fills)) - _least(lambda: _host_seconds(calls))
            return max(spent, 0.0) / _LAUNCHES

    def products(self) -> float:
        """Operations a second of a product of half types, of random numbers: matrix units are
        quicker on zeros. It runs on the program's stream, so that the library works in memory that
        the program's own products need, too. Raises LibraryNotLoaded before those have run."""
        if self._device not in PRODUCTS_LOADED:
            raise LibraryNotLoaded("products have not been used")
        items = _PRODUCT * _PRODUCT
        with self._ready(), self._memory(3 * 2 * items) as start, _as_eager(self._device):
            first, second, result = (
                self._half(start + place * 2 * items, items).view(_PRODUCT, _PRODUCT)
                for place in range(3)
            )
            own = torch.Generator(self._device).manual_seed(0)
            first.normal_(generator=own)
            second.normal_(generator=own)
            stream = ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
            run = functools.partial(torch.mm, first, second, out=result)
            try:
                return 2.0 * items * _PRODUCT / self._least_on_device(run, stream)
            finally:  # before its memory goes
                self._driver.check(self._library.cuStreamSynchronize(stream))

    def facts(self) -> tuple[str, ...]:
        """What tells this card and driver from others; not which of several equal cards it is."""
        properties = torch.cuda.get_device_properties(self._device)
        version = ctypes.c_int()
        self._library.cuDriverGetVersion(ctypes.byref(version))
        driver = ""
        with contextlib.suppress(OSError):
            driver = Path("/proc/driver/nvidia/version").read_text()
        counts = (properties.major, properties.minor, properties.multi_processor_count)
        return (properties.name, *map(str, counts), str(version.value), driver)

    def _half(self, address: int, items: int) -> torch.Tensor:
        storage = storage_at(address, 2 * items, self._device, None)
        made = torch.empty(0, dtype=torch.float16, device=self._device)
        made.set_(storage, 0, (items,), (1,))
        return made

    @contextlib.contextmanager
    def _ready(self) -> Iterator[None]:
        """The device's context as this thread's; another thread that captures is not disturbed."""
        mode = ctypes.c_int(_RELAXED)
        with self._driver.current():
            exchange = self._library.cuThreadExchangeStreamCaptureMode
            self._driver.check(exchange(ctypes.byref(mode)))
            try:
                yield
            finally:
                exchange(ctypes.byref(mode))

    @contextlib.contextmanager
    def _memory(self, size: int) -> Iterator[int]:
        start = ctypes.c_uint64()
        self._driver.check(self._library.cuMemAlloc_v2(ctypes.byref(start), ctypes.c_size_t(size)))
        try:
            yield start.value
        finally:
            self._library.cuMemFree_v2(start)

    @contextlib.contextmanager
    def _stream(self) -> Iterator[ctypes.c_void_p]:
        stream = ctypes.c_void_p()
        create = self._library.cuStreamCreate
        self._driver.check(create(ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING)))
        try:
            yield stream
        finally:
            self._library.cuStreamDestroy_v2(stream)

    def _least_on_device(self, run: Callable[[], object], stream: ctypes.c_void_p) -> float:
        """Seconds between two events around a run, the least of some."""
        library, check = self._library, self._driver.check
        events = [ctypes.c_void_p(), ctypes.c_void_p()]

        def seconds() -> float:
            check(library.cuEventRecord(events[0], stream))
            run()
            check(library.cuEventRecord(events[1], stream))
            check(library.cuEventSynchronize(events[1]))
            spent = ctypes.c_float()
            check(library.cuEventElapsedTime(ctypes.byref(spent), *events))
            return spent.value / 1e3

        try:
            for event in events:
                check(library.cuEventCreate(ctypes.byref(event), ctypes.c_uint(0)))
            return _least(seconds)
        finally:
            for event in events:
                if event.value is not None:
                    library.cuEventDestroy_v2(event)


# --- private ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _as_eager(device: torch.device) -> Iterator[None]:
    with torch.cuda.device(device), torch.no_grad(), without_autocast():
        yield


def _least(seconds: Callable[[], float]) -> float:
    """The least of a few runs behind the first one, which loads what it needs. Raises RuntimeError
    where the clock stood still."""
    seconds()
    found: list[float] = []
    while not found or (sum(found) < _SECONDS and len(found) < _MOST_RUNS):
        found.append(seconds())
    if not min(found) > 0:
        raise RuntimeError("the clock did not advance")
    return min(found)


def _host_seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _rounded(rate: float) -> float:
    """To two digits. Raises RuntimeError for what is no rate."""
    if not (math.isfinite(rate) and rate > 0):
        raise RuntimeError(f"{rate} is no rate")
    return float(f"{rate:.1e}")
