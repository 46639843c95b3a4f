"""The CUDA driver's interface, through ctypes: loading cubins, and what its error codes mean.

Only the driver's own library is needed, which is in every process that uses CUDA.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from braze.frozen import frozen
from braze.runtime.cuda.cubin_cache import Cubin

_LIBRARY = "libcuda.so.1"
_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SHARED_WITHOUT_ASKING = 48 * 1024


class CudaError(RuntimeError):
    """The driver refused a call, or a kernel failed."""


@final
@frozen
class LoadedFunction:
    """A kernel in a device's memory. handle: the driver's."""

    handle: int
    threads: int
    shared: int
    parameters: int


@final
class CudaDriver:
    """The driver's library with the device's primary context, which PyTorch uses too.

    Modules stay loaded as long as the process: kernels of identical functions are loaded once.
    """

    def __init__(self, library: Any, index: int) -> None:
        self.library = library
        self._lock = threading.Lock()
        self._loaded: dict[Cubin, LoadedFunction] = {}
        device = ctypes.c_int()
        context = ctypes.c_void_p()
        self.check(library.cuInit(0))
        self.check(library.cuDeviceGet(ctypes.byref(device), index))
        self.check(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.context = context.value or 0

    def load(self, cubin: Cubin) -> LoadedFunction:
        """The kernel, loaded at the first question."""
        with self._lock:
            found = self._loaded.get(cubin)
            if found is None:
                with self.current():
                    found = self._loaded[cubin] = self._load(cubin)
            return found

    def address(self, name: str) -> int:
        """Where a function of the driver begins."""
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0

    def describe(self, code: int) -> str:
        """An error code as CUDA's documentation has it."""
        texts = []
        for ask in (self.library.cuGetErrorName, self.library.cuGetErrorString):
            text = ctypes.c_char_p()
            ask(code, ctypes.byref(text))
            texts.append((text.value or b"unknown").decode())
        return f"{texts[0]} ({code}): {texts[1]}"

    @contextmanager
    def current(self) -> Iterator[None]:
        """The device's context as this thread's."""
        self.check(self.library.cuCtxPushCurrent_v2(ctypes.c_void_p(self.context)))
        try:
            yield
        finally:
            self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def check(self, code: int, cubin: Cubin | None = None) -> None:
        """Raise CudaError where the driver refused a call. cubin: what was to be loaded."""
        if code:
            where = "" if cubin is None else f" (loading {cubin.name}, {cubin.shared} bytes shared)"
            raise CudaError(f"{self.describe(code)}{where}")

    def _load(self, cubin: Cubin) -> LoadedFunction:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        library = self.library
        self.check(library.cuModuleLoadData(ctypes.byref(module), cubin.image), cubin)
        name = cubin.name.encode()
        self.check(library.cuModuleGetFunction(ctypes.byref(function), module, name), cubin)
        if cubin.shared > _SHARED_WITHOUT_ASKING:
            wanted = (function, _DYNAMIC_SHARED_BYTES, cubin.shared)
            self.check(library.cuFuncSetAttribute(*wanted), cubin)
        assert function.value is not None
        return LoadedFunction(function.value, cubin.threads, cubin.shared, cubin.parameters)


@final
class CudaDrivers:
    """One driver a device, opened at the first question."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drivers: dict[int, CudaDriver] = {}

    def of(self, index: int) -> CudaDriver:
        """The driver with the context of the device of that number. Raises OSError without one."""
        with self._lock:
            if index not in self._drivers:
                self._drivers[index] = CudaDriver(ctypes.CDLL(_LIBRARY), index)
            return self._drivers[index]


DRIVERS = CudaDrivers()
