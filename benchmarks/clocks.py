"""Wall and processor seconds of a piece of work, and the memory that a process has used.

Processor time counts this process and everything it started: compilers, and worker processes
that are still alive (torch.compile keeps a pool of them, which `getrusage` does not see).
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch


@final
@dataclass(frozen=True, slots=True)
class Elapsed:
    """Seconds by the wall clock, and of processor time over all processes."""

    wall_s: float
    processor_s: float

    def __add__(self, other: Elapsed) -> Elapsed:
        return Elapsed(self.wall_s + other.wall_s, self.processor_s + other.processor_s)


def synchronize(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def measure(work: Callable[[], Any], device: str = "cpu") -> tuple[Any, Elapsed]:
    """The work's result, and what it took until the device was done."""
    processor, wall = processor_seconds(), time.perf_counter()
    result = work()
    synchronize(device)
    wall = time.perf_counter() - wall
    return result, Elapsed(wall, processor_seconds() - processor)


def processor_seconds() -> float:
    """User and system seconds of this process, of its children that ended, and of the processes
    below it that still run (Linux only; elsewhere those are missing)."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    return total + _living_descendants_seconds(os.getpid())


def _living_descendants_seconds(root: int) -> float:
    processes = _process_table()
    total, waiting = 0.0, [root]
    while waiting:
        parent = waiting.pop()
        for child, (its_parent, seconds) in processes.items():
            if its_parent == parent:
                total += seconds
                waiting.append(child)
    return total


def _process_table() -> dict[int, tuple[int, float]]:
    """pid -> (pid of the parent, seconds of it and of its ended children), where /proc exists."""
    ticks = os.sysconf("SC_CLK_TCK")
    table: dict[int, tuple[int, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended between the listing and the reading
        # The name in brackets may hold spaces; what follows it is split by them.
        fields = text[text.rindex(")") + 2 :].split()
        table[int(stat.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / ticks)
    return table


def peak_memory_mib() -> float:
    """The most resident memory that this process ever had, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def peak_device_memory_mib(device: str) -> float | None:
    """The most memory that PyTorch's allocator ever held in tensors on a CUDA device, in MiB."""
    if torch.device(device).type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(device) / 2**20
