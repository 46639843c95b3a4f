"""What the figures were measured on. No host names, users or paths."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("torch", "torchvision", "transformers", "diffusers", "triton", "numpy", "braze")


def describe_machine(device: str, threads: int | None = None) -> dict[str, Any]:
    """Processor, cores, threads, memory, and the CUDA device where that is what is measured.
    load: how many processes wanted a core in the last minute, before the run."""
    machine: dict[str, Any] = {
        "processor": _processor_name(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": threads or torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": platform.system(),
        "load": round(os.getloadavg()[0], 2),
    }
    if torch.device(device).type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        machine["device"] = properties.name
        machine["device_memory_gib"] = round(properties.total_memory / 2**30, 1)
    return machine


def describe_versions() -> dict[str, str | None]:
    """Of Python and of the packages that matter; None for one that is not installed."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def today() -> str:
    """The date and time in UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _processor_name() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        found = re.search(r"model name\s*:\s*(.+)", information.read_text())
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()
