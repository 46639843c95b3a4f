"""Kernels' objects go with their last holder, and nobody gets one that is being closed."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from braze.ir.kernels.kernel import SourceUnit
from braze.runtime.launch import kernel_library
from braze.runtime.launch.build_cache import kernels_of
from braze.runtime.launch.cpp_compiler import Toolchain, find_toolchain
from braze.runtime.launch.kernel_library import KernelLibrary
from tests.unit.codegen.running import OPTIONS

_SHOWN = 'extern "C" __attribute__((visibility("default")))'
UNIT = SourceUnit("closed", f"{_SHOWN} int closed() {{ return 7; }}")


@pytest.fixture
def toolchain() -> Toolchain:
    found = find_toolchain(OPTIONS)
    assert isinstance(found, Toolchain)
    return found


def test_a_library_that_is_closed_cannot_be_taken(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by a weak reference that another thread asks meanwhile."""
    library = kernels_of((UNIT,), toolchain, OPTIONS)
    known, seen = weakref.ref(library), []
    close = kernel_library._CLOSE

    def closing(handle: int) -> int:
        seen.append(known())
        return int(close(handle))

    monkeypatch.setattr(kernel_library, "_CLOSE", closing)
    assert library.address("closed")
    del library
    assert seen == [None]


@pytest.fixture
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_take_and_drop_one_library(toolchain: Toolchain, switching_often: None) -> None:
    found: list[int] = []

    def take() -> None:
        for _ in range(300):
            found.append(kernels_of((UNIT,), toolchain, OPTIONS).address("closed"))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 1200 and all(found)


def test_what_is_no_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "damaged.so"
    path.write_bytes(b"no object")
    with pytest.raises(OSError, match="damaged"):
        KernelLibrary(str(path))


def test_symbols_that_it_has_not(toolchain: Toolchain) -> None:
    library: Any = kernels_of((UNIT,), toolchain, OPTIONS)
    with pytest.raises(OSError, match="no_such_symbol"):
        library.address("no_such_symbol")
