"""The way of a GPU without one: graphs on the CPU are scheduled as a GPU's, their Triton source is
launched by launch program, plan and launcher, and a driver has Triton's interpreter run it."""

from __future__ import annotations

import contextlib
import ctypes
import traceback
import types
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, final

import torch

from braze import devices
from braze.codegen.triton.operators import POINTERS
from braze.devices.cuda import DEVICE as ROW
from braze.ir.kernels.kernel import DeviceFunction
from braze.options import Options
from braze.runtime.cuda.cubin_cache import Cubin
from braze.runtime.cuda.driver_api import LoadedFunction
from braze.runtime.link import link_cuda as link_device
from braze.schedule import CUDA
from tests.unit.codegen.triton_running import interpreting, loaded

_P, _U = ctypes.c_void_p, ctypes.c_uint
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, _P, *[_U] * 7, _P, ctypes.POINTER(_P), _P)
_DEVICE, _STREAM = torch.device("cpu", 0), 99
_DTYPES = {name: dtype for dtype, name in POINTERS.items()} | {"*u8": torch.uint8}
_NUMBERS: Mapping[str, Any] = {
    "fp64": ctypes.c_double,
    "fp32": ctypes.c_float,
    "i64": ctypes.c_int64,
    "i32": ctypes.c_int32,
}
_FAILED = 700


@final
class InterpretingDriver:
    """What `link_device` asks of a driver. count: of the launches; held: the interpreter."""

    context = 0
    library = None

    def __init__(self) -> None:
        self.count = 0
        self.held = contextlib.ExitStack()
        self._functions: list[DeviceFunction] = []
        self._built: dict[int, tuple[Cubin, DeviceFunction]] = {}
        self._callback = _LAUNCH(self._launch)

    def build(
        self, functions: Collection[DeviceFunction], architecture: int, options: Options
    ) -> dict[DeviceFunction, Cubin]:
        """Nothing is built: each function's source is what the interpreter reads."""
        found = {}
        for function in functions:
            count = sum(kind != "constexpr" for kind in function.signature)
            found[function] = cubin = Cubin(function.name, b"", 32, 0, count)
            self._built[id(cubin)] = cubin, function
        return found

    def load(self, cubin: Cubin) -> LoadedFunction:
        """A number for its function."""
        self._functions.append(self._built[id(cubin)][1])
        return LoadedFunction(len(self._functions), 32, 0, cubin.parameters)

    def address(self, name: str) -> int:
        """Of the function that launches, whatever is asked for."""
        return ctypes.cast(self._callback, _P).value or 0

    def describe(self, code: int) -> str:
        return f"the interpreter failed ({code})"

    def of(self, index: int) -> InterpretingDriver:
        return self

    def _launch(self, number: int, *rest: Any) -> int:
        grid, pointers = rest[:3], rest[-2]
        function = self._functions[number - 1]
        kinds = [kind for kind in function.signature if kind != "constexpr"]
        self.count += 1
        try:
            arguments = [_argument(kind, pointers[n]) for n, kind in enumerate(kinds)]
            with torch._C.DisableTorchFunction():
                loaded(function)[grid](*arguments, *function.constants)
        except BaseException:  # it cannot pass through C: the caller raises for the code
            traceback.print_exc()
            return _FAILED
        return 0


def install(mode: str | None = None) -> InterpretingDriver:
    """Have this process' graphs on the CPU take the way of a device from now on, in that mode; what
    would be recorded runs as compiled."""
    driver = InterpretingDriver()
    driver.held.enter_context(interpreting())
    for name, value in {
        "DRIVERS": driver,
        "POOLS": types.SimpleNamespace(of=lambda device: None),
        "_recorded": lambda made, *rest: made,
        "build_cubins": driver.build,
        "triton_version": lambda: "interpreted",
        "total_memory": lambda device: 1 << 36,
        "prepare_room": lambda *rest: None,
        "current_stream": lambda index: _STREAM,
        "_architecture": lambda device: 90,
    }.items():
        setattr(link_device, name, value)

    def link(plan: Any, sources: Any, options: Any, device: Any, role: Any, report: Any) -> Any:
        chosen = replace(options, mode=mode or "default")
        return link_device.link_device(plan, sources, chosen, _DEVICE, role, report)

    torch.cuda.device_count = lambda: 1
    row = replace(
        ROW, target=lambda _: CUDA, link=link, builds=lambda _: True, prepare=lambda: None
    )
    devices._DEVICES = types.MappingProxyType({"cpu": lambda: row})
    return driver


def _argument(kind: str, place: int) -> Any:
    """What a kernel's parameter holds. Of a pointer the interpreter wants a tensor that begins
    there."""
    if not kind.startswith("*"):
        return _NUMBERS[kind].from_address(place).value
    address, dtype = ctypes.c_int64.from_address(place).value, _DTYPES[kind]
    if not address:
        return torch.empty(0, dtype=dtype, device="cpu")
    memory = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)
