"""What this machine's processors reach: bytes of memory a second, and operations of a product.

    <cache>/rates/<key>    {"memory": 1.4e10}    key: processor, compiler, PyTorch, threads, rate

The best of a few runs of PyTorch's own kernels, to two digits. Measured once, for traces.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from braze.compat.torch.grad_mode import without_autocast
from braze.compat.torch.versions import TORCH
from braze.kernel_times import MachineRates
from braze.options import Options
from braze.runtime.launch.cpp_compiler import Toolchain
from braze.runtime.launch.kept_measurements import kept_measurement, note_measurement

_READ = 64 << 20  # bytes: more than most last-level caches have for one process
_SIZE = 1024  # rows, columns and summed
_RUNS = 5
_VERSION = 1


def machine_rates(toolchain: Toolchain, options: Options) -> MachineRates | None:
    """The rates with as many threads as PyTorch uses now, from the cache or measured; None where
    they cannot be."""
    threads = torch.get_num_threads()
    facts = (_VERSION, TORCH, toolchain.identity, threads)

    def rate(name: str, measure: Callable[[], float]) -> float | None:
        def describe(found: float) -> str:
            return f"{name}: {found:.2g} a second"

        return kept_measurement(name, (name, *facts), measure, describe, options)

    try:
        memory, products = rate("memory", _memory), rate("products", _products)
    except (RuntimeError, OSError) as error:
        note_measurement(f"the machine's rates cannot be measured: {error}")
        return None
    return MachineRates(memory, products, threads) if memory and products else None


# --- private ---------------------------------------------------------------------------------


def _memory() -> float:
    """Bytes a second, of a sum that reads or of a copy that reads and writes: the larger."""
    read = torch.full((_READ // 4,), 0.5, dtype=torch.float32, device="cpu")
    written = torch.empty_like(read)
    reading = _READ / _least(read.sum)
    return _rounded(max(reading, 2 * _READ / _least(lambda: written.copy_(read))))


def _products() -> float:
    """Operations a second of a product of float32."""
    first = torch.full((_SIZE, _SIZE), 0.5, dtype=torch.float32, device="cpu")
    result = torch.empty_like(first)
    return _rounded(2.0 * _SIZE**3 / _least(lambda: torch.mm(first, first, out=result)))


def _least(run: Callable[[], object]) -> float:
    found = []
    with torch.no_grad(), without_autocast():
        for _ in range(_RUNS + 1):
            began = time.perf_counter()
            run()
            found.append(time.perf_counter() - began)
    if not min(found[1:]) > 0:  # the first loads what it needs
        raise RuntimeError("the clock did not advance")
    return min(found[1:])


def _rounded(rate: float) -> float:
    return float(f"{rate:.2g}")
