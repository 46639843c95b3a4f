"""How long kernels took, where a trace measures them.

A trace has `KernelTimes` of each graph that is compiled; its launch program adds to them at each
call. Without a trace there are none, and a call does nothing for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import final

from braze.frozen import frozen
from braze.locks import make_lock


@final
@frozen
class KernelTime:
    """Of one name: how often it ran, and the wall seconds of all runs and of the shortest."""

    calls: int
    total: float
    least: float


@final
@frozen
class MachineRates:
    """What the machine reaches with so many threads. memory: bytes a second; products: operations
    of float32 a second."""

    memory: float
    products: float
    threads: int


@final
class KernelTimes:
    """Wall seconds of kernels of a graph, of its calls of ATen, and of the whole graph, by name.
    May be added to from several threads.

    rates: finds what the machine reaches, where kernels are timed.
    """

    __slots__ = ("_found", "_lock", "rates")

    def __init__(self) -> None:
        self.rates: Callable[[], MachineRates | None] = _no_rates
        self._lock = make_lock()
        self._found: dict[str, list[float]] = {}

    def add(self, name: str, seconds: float) -> None:
        """Something ran once. name: of a kernel or an operator; "" of the whole graph."""
        with self._lock:
            found = self._found.setdefault(name, [0, 0.0, seconds])
            found[0] += 1
            found[1] += seconds
            found[2] = min(found[2], seconds)

    def items(self) -> Iterator[tuple[str, KernelTime]]:
        """What ran so far."""
        with self._lock:
            found = [(name, KernelTime(int(n), *rest)) for name, (n, *rest) in self._found.items()]
        return iter(found)


@final
class GraphTimes:
    """The times of each graph of a process, by its title."""

    __slots__ = ("_graphs", "_lock")

    def __init__(self) -> None:
        self._lock = make_lock()
        self._graphs: dict[str, KernelTimes] = {}

    def of(self, title: str) -> KernelTimes:
        """What a graph's calls add to."""
        with self._lock:
            return self._graphs.setdefault(title, KernelTimes())

    def graphs(self) -> Mapping[str, KernelTimes]:
        """All of them."""
        with self._lock:
            return MappingProxyType(dict(self._graphs))


# --- private ---------------------------------------------------------------------------------


def _no_rates() -> None:
    return None
