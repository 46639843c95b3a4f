"""Both ways of calling an entry give the same."""

from __future__ import annotations

import ctypes

import pytest
import torch

from braze.ir.kernel import SourceUnit
from braze.options import config
from braze.runtime.build import build, load
from braze.runtime.launch import IndexRangeError, load_launcher, raise_fault, run_by_ctypes
from braze.runtime.toolchain import Toolchain, find_toolchain

ENTRY = """
extern "C" __attribute__((visibility("default")))
int entry(char** table, const long* sizes, int threads) {
    *(float*)table[1] = *(float*)table[0] + (float)sizes[0];
    return threads;
}
"""


@pytest.mark.parametrize("way", ["extension", "ctypes"])
def test_run(way: str) -> None:
    options = config.snapshot()
    toolchain = find_toolchain(options)
    assert isinstance(toolchain, Toolchain)
    library = load(build([SourceUnit("entry", ENTRY)], toolchain, options))
    run = run_by_ctypes if way == "ctypes" else load_launcher(toolchain, options)
    address = ctypes.cast(library.entry, ctypes.c_void_p).value
    table, sizes = (ctypes.c_void_p * 2)(), (ctypes.c_long * 1)(4)
    x, y = torch.tensor([1.5]), torch.zeros(1)
    places = ctypes.addressof(table), ctypes.addressof(sizes)
    assert run(address, *places, 3, 0, x, 1, y) == 3
    assert y.item() == 5.5


def test_faults() -> None:
    with pytest.raises(IndexRangeError):
        raise_fault(1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        raise_fault(2)
