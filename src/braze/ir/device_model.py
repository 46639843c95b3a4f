"""What a GPU can do, as far as decisions depend on it: counts from its driver, and rates.

Rates are what an H200 was measured to reach of its clock and its memory, applied to the counts of
another card; of a card in this machine, those that decisions read are corrected by a measurement
(`device_rates.py`). `KNOWN` has the counts of some cards, for tests and for plans without a device.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Final, final

import torch

from braze.frozen import frozen
from braze.ir.device_rates import MEASURES, MeasuredRates, Rate

# Multiplications and additions of half types that a processor's matrix units make in a cycle, by
# compute capability; others as those of the next older one.
_MATRIX_OPERATIONS: Final = {(8, 0): 2048, (8, 6): 1024, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192}


@final
@frozen
class DeviceModel:
    """Counts, as the driver says.

    processors: streaming multiprocessors. clock: of them, in Hz. bandwidth: of memory, bytes a
    second. cache_bytes: of the second-level cache. shared_bytes: that one program may have;
    processor_shared_bytes: that all of a processor's have. registers, threads: of a processor.
    capability: (major, minor). measured: what it was measured to reach, where it is at hand.
    """

    name: str
    capability: tuple[int, int]
    processors: int
    clock: float
    bandwidth: float
    cache_bytes: int
    shared_bytes: int
    processor_shared_bytes: int
    registers: int
    threads: int
    measured: MeasuredRates | None = field(default=None, compare=False)

    # --- rates: a second, of the whole device, but for those of a processor ----------------------

    @property
    def memory(self) -> float:
        """Bytes of a copy."""
        return self._moved * _share(4.2e12, "bandwidth")

    @property
    def hidden_memory(self) -> float:
        """Bytes that move beside a kernel that computes."""
        return self._moved * _share(4e12, "bandwidth")

    @property
    def cache(self) -> float:
        """Bytes from the second-level cache, which has as many ports as there are processors."""
        return self.processors * self.clock * _share(8e12, "processors", "clock")

    @property
    def processor_cache(self) -> float:
        """Bytes from the second-level cache to one processor that multiplies."""
        return self.clock * _share(42e9, "clock")

    @property
    def processor_memory(self) -> float:
        """Bytes that one processor of a busy device writes."""
        return self._moved / self.processors * (30e9 * H200.processors / H200.bandwidth)

    def processor_products(self, itemsize: int) -> float:
        """Operations of one processor's matrix units on items of 2 or 4 bytes."""
        measured = {2: 4.5e12, 4: 2.2e12}[itemsize]
        return measured * self._matrix_rate / self.processors * H200.processors / H200._matrix_rate

    @property
    def operations(self) -> float:
        """Operations of no matrix units."""
        return self.processors * self.clock * _share(20e12, "processors", "clock")

    def products(self, itemsize: int) -> float:
        """Operations of a library's products; float64's, and what nobody measured, as the data
        sheet of an H200 has it."""
        measured = {1: 600e12, 2: 600e12, 4: 100e12}.get(itemsize, 60e12)
        return measured * self._matrix_rate / H200._matrix_rate

    def aligned_products(self, row_bytes: int = 16) -> float:
        """The same of half types, where rows begin at multiples of so many bytes."""
        measured = {2: 120e12, 4: 235e12, 8: 400e12}.get(row_bytes, 690e12)
        return measured * self._matrix_rate / H200._matrix_rate

    @property
    def _matrix_rate(self) -> float:
        """Of half types, a second: as counts have it, times what was measured of that."""
        older = [key for key in _MATRIX_OPERATIONS if key <= self.capability]
        each = _MATRIX_OPERATIONS[max(older)] if older else _MATRIX_OPERATIONS[8, 6]
        counted = 2 * each * self.processors * self.clock
        return counted * self._reached("products", counted / _MATRIX_RATE_OF_AN_H200)

    @property
    def _moved(self) -> float:
        """Bytes of memory a second: as counts have it, times what was measured of that."""
        return self.bandwidth * self._reached("copy", self.bandwidth / H200.bandwidth)

    @property
    def launch(self) -> float:
        """Seconds of starting one kernel more, which are the host's and its driver's."""
        return LAUNCH * self._reached("launch", 1.0)

    def _reached(self, rate: Rate, counted: float) -> float:
        """A measured rate, for what it would be if the card made of its counts what an H200 does.
        counted: its counts, for an H200's. 1 where nothing was measured, or what cannot be: a
        device that somebody else keeps busy."""
        found = None if self.measured is None else self.measured.get(rate)
        share = 1.0 if found is None else found / (MEASURED_OF_AN_H200[rate] * counted)
        return share if _LEAST <= share <= _MOST else 1.0

    # --- what follows from counts ----------------------------------------------------------------

    def tasks(self, for_an_h200: int) -> int:
        """As many tasks for this device's processors as those are for the 132 of an H200."""
        return max(1, for_an_h200 * self.processors // H200.processors)

    @property
    def blocks_bytes(self) -> int:
        """Shared memory of a program, but for what Triton itself keeps there."""
        return max(self.shared_bytes - _OF_TRITON, 0)


_MATRIX_RATE_OF_AN_H200: Final = 2 * 4096 * 132 * 1.98e9
# What an H200 gives in the measurements of `runtime/cuda/device_rates.py`: an H100, which has its
# processors, gave 2e-6 s and 690e12, and of its own memory 0.99 of what the counts say.
MEASURED_OF_AN_H200: Final[Mapping[Rate, float]] = types.MappingProxyType(
    {"copy": 4.2e12, "launch": 2e-6, "products": 690e12}
)
_LEAST, _MOST = 0.4, 2.5  # of what counts say: beyond that it is no measurement
# Seconds of starting a kernel, and of the smallest one, beside an H200.
LAUNCH: Final = 3e-6
STEP: Final = 2e-6
_OF_TRITON = 7 << 10

_HALF = 1 << 16  # registers
H200: Final = DeviceModel(
    "H200", (9, 0), 132, 1.98e9, 4.8e12, 50 << 20, 227 << 10, 228 << 10, _HALF, 2048
)
KNOWN: Final[Mapping[str, DeviceModel]] = types.MappingProxyType(
    {
        model.name: model
        for model in (
            H200,
            DeviceModel(
                "H100", (9, 0), 132, 1.98e9, 3.35e12, 50 << 20, 227 << 10, 228 << 10, _HALF, 2048
            ),
            DeviceModel(
                "A100", (8, 0), 108, 1.41e9, 2.04e12, 40 << 20, 163 << 10, 164 << 10, _HALF, 2048
            ),
            DeviceModel(
                "L4", (8, 9), 58, 2.04e9, 0.3e12, 48 << 20, 99 << 10, 100 << 10, _HALF, 1536
            ),
        )
    }
)


@functools.cache
def model_of_device(device: torch.device) -> DeviceModel:
    """The model of a device of this machine; an H200's for a device that it has not got."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return H200
    model = model_of(torch.cuda.get_device_properties(device))
    return replace(model, measured=MEASURES.rates_of(device))


def model_of(properties: Any) -> DeviceModel:
    """The model of a device, from `torch.cuda.get_device_properties`. A driver that does not say
    how fast something is gives an H200's."""
    bits, clock = _read(properties, "memory_bus_width"), _read(properties, "memory_clock_rate")
    bandwidth = 2 * clock * 1000 * bits / 8 if bits and clock else H200.bandwidth
    return DeviceModel(
        str(properties.name),
        (int(properties.major), int(properties.minor)),
        int(properties.multi_processor_count),
        _read(properties, "clock_rate") * 1000.0 or H200.clock,
        bandwidth,
        _read(properties, "L2_cache_size") or H200.cache_bytes,
        int(properties.shared_memory_per_block_optin),
        _read(properties, "shared_memory_per_multiprocessor") or H200.processor_shared_bytes,
        _read(properties, "regs_per_multiprocessor") or H200.registers,
        _read(properties, "max_threads_per_multi_processor") or H200.threads,
    )


# --- private ---------------------------------------------------------------------------------


def _read(properties: object, name: str) -> int:
    return int(getattr(properties, name, 0))


def _share(measured: float, *counts: str) -> float:
    """What was measured on an H200, for one of its counts' product."""
    for count in counts:
        measured /= getattr(H200, count)
    return measured
