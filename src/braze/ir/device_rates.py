"""Rates of the devices of this machine, each measured when a decision first reads it.

What measures is registered by type of device, beside its code (`device_rates.py`); a device
that nobody measures has the rates of the table (`device_model.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias, final

import torch

from braze.locks import make_lock

# "copy": bytes a second that a copy of much memory reads and writes; "launch": seconds of starting
# one kernel more; "products": operations a second of a large product of half types.
Rate: TypeAlias = Literal["copy", "launch", "products"]
# In place of a rate that would cost too much to measure now, and may not later.
NOT_YET: Final = "not yet"
# A rate, or NOT_YET; None where it cannot be measured.
Measured: TypeAlias = float | Literal["not yet"] | None
Measure: TypeAlias = Callable[[torch.device, Rate], Measured]


@final
class MeasuredRates:
    """The rates of one device. A rate that cannot be measured is not asked for again."""

    def __init__(self, device: torch.device, measure: Measure) -> None:
        self._device, self._measure = device, measure
        self._lock = make_lock()
        self._found: dict[Rate, float | None] = {}

    def get(self, rate: Rate) -> float | None:
        """The rate; None where it cannot be measured, or not yet."""
        with self._lock:
            if rate not in self._found:
                measured = self._measure(self._device, rate)
                if measured == NOT_YET:
                    return None
                self._found[rate] = measured
            return self._found[rate]


@final
class Measures:
    """Type of device -> what measures the devices of that type."""

    def __init__(self) -> None:
        self._rows: dict[str, Measure] = {}

    def register(self, kind: str, measure: Measure) -> None:
        """Have it measure the devices of a type ("cuda")."""
        assert kind not in self._rows, kind
        self._rows[kind] = measure

    def rates_of(self, device: torch.device) -> MeasuredRates:
        """The rates of a device; none are there where nothing measures its type."""
        return MeasuredRates(device, self._rows.get(device.type, _measure_nothing))


def _measure_nothing(device: torch.device, rate: Rate) -> None:
    return None


MEASURES = Measures()
