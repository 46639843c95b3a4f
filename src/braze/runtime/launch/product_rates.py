"""Which products kernels compute in less time than ATen: measured on this machine, once a class.

    <cache>/rates/<key>    {"share": 0.71}    key: processor, compiler, PyTorch, threads, class

A class is what neighbouring sizes have in common: powers of two, and the order in memory of both
matrices. Each side runs a few times in turn, and the least counts: other work on the machine slows
some of them. A kernel must be clearly quicker: what is level stays with ATen. Where nothing can be
measured, all stay there.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import time
from collections.abc import Callable
from typing import final

import torch

from braze.compat.torch.grad_mode import without_autocast
from braze.compat.torch.versions import TORCH
from braze.errors import BrazeError
from braze.frozen import frozen
from braze.ir.kernels.kernel import SourceUnit
from braze.ir.kernels.schedule import PANEL, Product
from braze.locks import make_lock
from braze.options import Options
from braze.runtime.launch.build_cache import library_of
from braze.runtime.launch.cpp_compiler import NoCompiler, Toolchain, find_for_kernels
from braze.runtime.launch.kept_measurements import kept_measurement, note_measurement
from braze.shapes.expr import constant_value

_CLEARLY = 0.9  # of ATen's time: measurements of one machine differ by a few hundredths
_ROWS, _COLUMNS, _DEPTH = 448, 1024, 1024  # at most, of what is timed
_TILE = 56  # rows that are timed are whole tiles,
_FEW, _FEWEST = 32, 1  # or a part of one, of a matrix that is packed
_LEAST_RUNS, _MOST_RUNS = 4, 12
_SECONDS = 0.06  # of runs of a class, above the least number
_VERSION = 2


@final
@frozen
class ProductClass:
    """Sizes that are timed, and whether rows of each matrix are contiguous ("r") or columns.
    stays: whether the second is packed before."""

    m: int
    n: int
    k: int
    first: str
    second: str
    stays: bool = False

    @classmethod
    def of(cls, product: Product) -> ProductClass | None:
        """The class of a product; None where its matrices lie in memory as no library expects."""
        m, k = (constant_value(size) or 1 for size in product.first.shape[-2:])
        n = constant_value(product.second.shape[-1]) or 1
        orders = []
        for view in (product.first, product.second):
            steps = [constant_value(step) for step in view.stride[-2:]]
            if 1 not in steps:
                return None
            orders.append("r" if steps[1] == 1 else "c")
        rows = _TILE * max(_power(m, _ROWS) // _TILE, 1)
        if product.stays and m < _TILE:
            rows, orders[0] = max(_power(m, _FEW), _FEWEST), "r"
        first, second = orders
        columns, depth = _power(n, _COLUMNS), _power(k, _DEPTH)
        return cls(rows, columns, depth, first, second, product.stays)


@final
class ProductShares:
    """The shares of ATen's time that kernels of the process take, by class and threads."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._found: dict[tuple[ProductClass, int, str], float] = {}

    def is_quicker(
        self, product: Product, threads: int, probe: SourceUnit, options: Options
    ) -> bool:
        """Whether a kernel of the product is clearly quicker. threads: that kernels may use; probe:
        what multiplies like it."""
        kind = ProductClass.of(product)
        toolchain = find_for_kernels(options)
        if kind is None or isinstance(toolchain, NoCompiler):
            return False
        key = (kind, threads, toolchain.identity)
        with self._lock:
            if key not in self._found:
                self._found[key] = _share(kind, threads, probe, toolchain, options)
            return self._found[key] < _CLEARLY


SHARES = ProductShares()


# --- private ---------------------------------------------------------------------------------


def _power(size: int, most: int) -> int:
    """The power of two next to a size, at most so large."""
    return int(min(2 ** round(math.log2(size)), most))


def _share(
    kind: ProductClass, threads: int, probe: SourceUnit, toolchain: Toolchain, options: Options
) -> float:
    """From the cache or measured; infinite where it cannot be."""
    code = hashlib.sha256(probe.text.encode()).hexdigest()
    try:
        found = kept_measurement(
            "share",
            (_VERSION, TORCH, toolchain.identity, code, threads, kind),
            lambda: _measured(kind, threads, library_of((probe,), toolchain, options)),
            lambda share: f"{kind}: a kernel takes {share:.2f} of ATen's time",
            options,
        )
        return found or math.inf
    except (RuntimeError, OSError, BrazeError) as error:
        note_measurement(f"{kind} cannot be measured: {error}")
        return math.inf


def _measured(kind: ProductClass, threads: int, library: ctypes.CDLL) -> float:
    with torch.no_grad(), without_autocast():
        first = _matrix(kind.m, kind.k, kind.first)
        second = _matrix(kind.k, kind.n, kind.second)
        result = torch.empty(kind.m, kind.n, dtype=torch.float32, device="cpu")
        sizes = (kind.m, kind.n, kind.k, *first.stride(), *second.stride(), kind.stays)
        held = (ctypes.c_int64 * len(sizes))(*sizes)
        panels = _matrix(kind.k, -(-kind.n // PANEL) * PANEL, "r") if kind.stays else second
        places = [ctypes.c_void_p(t.data_ptr()) for t in (first, panels, result)]
        if kind.stays:
            order = (ctypes.c_int64 * 4)(kind.k, kind.n, *second.stride())
            library.bz_pack_whole(order, ctypes.c_void_p(second.data_ptr()), places[1])

        def kernel() -> None:
            library.bz_probe(held, *places, ctypes.c_int(threads))

        def aten() -> None:
            torch.mm(first, second, out=result)

        kernel()
        aten()  # once for what they load
        times: list[tuple[float, float]] = []
        while len(times) < _MOST_RUNS:
            if len(times) >= _LEAST_RUNS and sum(map(sum, times)) > _SECONDS:
                break
            times.append((_seconds(kernel), _seconds(aten)))
    ours, theirs = (min(column) for column in zip(*times, strict=True))
    if not theirs > 0:
        raise RuntimeError("the clock did not advance")
    return float(f"{ours / theirs:.2g}")


def _matrix(rows: int, columns: int, order: str) -> torch.Tensor:
    """Of numbers that are no burden, none drawn: the program's own draws stay as they are."""
    if order == "c":
        return _matrix(columns, rows, "r").t()
    return torch.full((rows, columns), 0.5, dtype=torch.float32, device="cpu")


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
