"""Both ways of calling an entry give the same."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from braze.compat.torch import tensor_abi as tensor_interface
from braze.ir.kernels.kernel import SourceUnit
from braze.options import config
from braze.runtime.launch import kernel_launcher as launch
from braze.runtime.launch.build_cache import build, load
from braze.runtime.launch.cpp_compiler import Toolchain, find_toolchain
from braze.runtime.launch.kernel_launcher import (
    IndexRangeError,
    load_connected,
    load_launcher,
    raise_fault,
    run_by_ctypes,
)

# How entries begin: with the function that runs them.
_ENTRY = """
struct Entry { int (*run)(const Entry*, char**, const long*, int); int added; };
extern "C" __attribute__((visibility("default"))) const Entry entry;
"""
ENTRY = (
    _ENTRY
    + """
static int run(const Entry* entry, char** table, const long* sizes, int threads) {
    *(float*)table[1] = *(float*)table[0] + (float)(sizes[0] + entry->added);
    return threads;
}
const Entry entry = {run, 2};
"""
)


@pytest.mark.parametrize("way", ["extension", "ctypes"])
def test_run(way: str) -> None:
    options = config.snapshot()
    toolchain = find_toolchain(options)
    assert isinstance(toolchain, Toolchain)
    library = load(build([SourceUnit("entry", ENTRY)], toolchain, options))
    run = run_by_ctypes if way == "ctypes" else load_launcher(toolchain, options)
    address = _address(library)
    table, sizes = (ctypes.c_void_p * 2)(), (ctypes.c_long * 1)(4)
    x, y = torch.tensor([1.5]), torch.zeros(1)
    places = ctypes.addressof(table), ctypes.addressof(sizes)
    assert run(address, *places, 3, 0, x, 1, y) == 3
    assert y.item() == 7.5


def test_faults() -> None:
    with pytest.raises(IndexRangeError):
        raise_fault(1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        raise_fault(2)


NOTHING = (
    _ENTRY
    + """
static int nothing(const Entry*, char**, const long*, int) { return 0; }
const Entry entry = {nothing, 0};
"""
)


def _address(library: ctypes.CDLL) -> int:
    return ctypes.addressof(ctypes.c_char.in_dll(library, "entry"))


class Elsewhere:
    """Not a tensor, but something that says where its data are."""

    def data_ptr(self) -> int:
        return 4096


class Nowhere:
    def data_ptr(self) -> int:
        raise RuntimeError("it has no memory")


class Subclass(torch.Tensor):
    """Whose Python methods nobody asks."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(func)


@pytest.mark.parametrize("connected", [True, False])
def test_tensors_are_asked_for_their_addresses(
    connected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not connected:
        monkeypatch.setattr(launch, "data_of_tensors", lambda: None)
    options = config.snapshot()
    toolchain = find_toolchain(options)
    assert isinstance(toolchain, Toolchain)
    library = load(build([SourceUnit("nothing", NOTHING)], toolchain, options))
    run = load_connected("launcher", toolchain, options).run
    entry = _address(library)
    whole = torch.arange(24.0).reshape(4, 6)
    tensors = [whole, whole[1:, 2:], whole.t(), torch.nn.Parameter(whole), torch.empty(0, 3)]
    tensors += [whole[2, 3], torch.ones(3, dtype=torch.bool)]
    expected = [tensor.data_ptr() for tensor in tensors]
    given: list[Any] = [*tensors, Elsewhere()]
    if connected:
        given.append(whole.as_subclass(Subclass))
    table = (ctypes.c_void_p * len(given))()
    pairs = [part for pair in enumerate(given) for part in pair]
    assert run(entry, ctypes.addressof(table), ctypes.addressof(table), 1, *pairs) == 0
    wanted = [*expected, 4096, *[whole.data_ptr()] * connected]
    assert [place or 0 for place in table] == wanted
    with pytest.raises(RuntimeError, match="no memory"):
        run(entry, ctypes.addressof(table), ctypes.addressof(table), 1, 0, Nowhere())


@pytest.mark.parametrize("lack", ["function", "layout", "answer"])
def test_a_build_may_not_say_where_data_are(lack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tensor_interface.data_of_tensors() is not None
    if lack == "function":
        monkeypatch.setattr(tensor_interface, "exported_address", lambda *_: 0)
    elif lack == "layout":
        monkeypatch.setattr(tensor_interface, "implementation_offset", lambda: None)
    else:
        monkeypatch.setattr(tensor_interface, "_DATA", "aoti_torch_get_storage_offset")
    assert tensor_interface.data_of_tensors() is None
