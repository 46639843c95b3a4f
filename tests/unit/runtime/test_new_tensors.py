"""Tensors that the launcher makes: as described, at the table's addresses, by C++ and by Python."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import pytest
import torch

from braze.options import Options
from braze.runtime.cuda.launch_plan import launch_by_ctypes
from braze.runtime.cuda.output_allocation import (
    DeviceLauncher,
    NewTensor,
    load_launcher_for_devices,
    made_by_python,
)
from braze.runtime.launch.cpp_compiler import Toolchain, find_toolchain

CPU = torch.device("cpu")
NOTHING = (ctypes.c_long * 7)(0, 0, 0, 0, 0, -1, 0)
MADE = (
    NewTensor(2, (2, 3), (1, 2), torch.float32, True),
    NewTensor(0, (4, 0), (1, 1), torch.int64, False),
    NewTensor(1, (), (), torch.float8_e4m3fn, False),
    NewTensor(3, (2, 2, 2, 2, 2, 2, 2), (64, 32, 16, 8, 4, 2, 1), torch.complex64, False),
)


@pytest.fixture(params=["extension", "ctypes"])
def launcher(request: pytest.FixtureRequest) -> DeviceLauncher:
    if request.param == "ctypes":
        return DeviceLauncher(launch_by_ctypes, None)
    toolchain = find_toolchain(Options())
    assert isinstance(toolchain, Toolchain)
    made = load_launcher_for_devices(toolchain, Options())
    assert made.making is not None
    return made


def _made(launcher: DeviceLauncher, *bound: Any) -> tuple[Any, tuple[Any, ...]]:
    names = launcher.names_for({"made0": MADE}, CPU)
    table, sizes = (ctypes.c_void_p * 6)(), (ctypes.c_long * 1)()
    at = [ctypes.addressof(memory) for memory in (table, sizes)]
    return table, names["launch_making"](ctypes.addressof(NOTHING), names["made0"], *at, 0, *bound)


def test_they_are_as_described(launcher: DeviceLauncher) -> None:
    given = torch.ones(3)
    table, (fault, *found) = _made(launcher, 5, given)
    assert fault == 0 and table[5] == given.data_ptr()
    for new, tensor in zip(MADE, found, strict=True):
        assert type(tensor) is torch.Tensor and tensor.device == CPU
        assert (tuple(tensor.shape), tensor.stride()) == (new.shape, new.stride)
        assert tensor.dtype is new.dtype and not tensor.requires_grad and tensor.grad_fn is None
        assert (table[new.place] or 0) == tensor.data_ptr()


def test_each_call_makes_its_own_and_nothing_else_holds_them(launcher: DeviceLauncher) -> None:
    _, (_, *first) = _made(launcher)
    _, (_, *second) = _made(launcher)
    first[0].fill_(1.0), second[0].fill_(2.0)
    assert first[0].unique().tolist() == [1.0]
    assert first[0]._use_count() == 1  # type: ignore[attr-defined]
    ends = [weakref.ref(tensor) for tensor in (*first, *second)]
    del first, second
    gc.collect()
    assert [end() for end in ends] == [None] * len(ends)


def test_under_grad_and_inference_mode(launcher: DeviceLauncher) -> None:
    with torch.enable_grad():
        assert not _made(launcher)[1][1].requires_grad
    with torch.inference_mode():
        assert _made(launcher)[1][1].is_inference()


def test_what_does_not_fit_raises_out_of_memory(launcher: DeviceLauncher) -> None:
    if launcher.making is None:
        pytest.skip("Python's allocator says itself what is wrong")
    huge = NewTensor(0, (1 << 60,), (1,), torch.float32, True)
    names = launcher.names_for({"made0": [huge]}, CPU)
    table = (ctypes.c_void_p * 2)()
    with pytest.raises(torch.OutOfMemoryError, match="compiled kernels"):
        at = ctypes.addressof(NOTHING), names["made0"], ctypes.addressof(table)
        names["launch_making"](*at, 0, 0)


def test_a_recording_has_its_results_elsewhere() -> None:
    asked: list[str] = []

    def make(name: str) -> Any:
        def made(shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
            asked.append(name)
            return torch.empty_strided(shape, stride, dtype=dtype)

        return made

    names = made_by_python({"made0": MADE}, launch_by_ctypes, make("inside"), make("outside"))
    table = (ctypes.c_void_p * 6)()
    at = ctypes.addressof(NOTHING), names["made0"], ctypes.addressof(table)
    fault, *found = names["launch_making"](*at, 0, 0)
    assert fault == 0 and asked == ["outside", "inside", "inside", "inside"]
    assert [(table[new.place] or 0) for new in MADE] == [tensor.data_ptr() for tensor in found]
