"""A shared object of kernels in this process: unloaded when nobody holds it any more.

Whoever may call into it holds it: a launch program has it among its globals, which each call of the
program keeps alive, in every thread; an autograd node holds its backward's launch program. OpenMP's
threads have left a kernel when the kernel returns, and wait in OpenMP's own library for the next.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final, final

from braze.compat.python.other_compilers import hide_from_other_compilers

# Calls keep the interpreter's lock: an object may be dropped between any two instructions, where no
# other thread may come in. One table of functions for all objects: a `ctypes.CDLL` of each makes a
# class, which only the cycle collector frees.
_LOADER: Final = ctypes.PyDLL(None)
_OPEN = _LOADER.dlopen
_OPEN.argtypes, _OPEN.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
_SYMBOL = _LOADER.dlsym
_SYMBOL.argtypes, _SYMBOL.restype = (ctypes.c_void_p, ctypes.c_char_p), ctypes.c_void_p
_CLOSE = _LOADER.dlclose
_CLOSE.argtypes, _CLOSE.restype = (ctypes.c_void_p,), ctypes.c_int
_ERROR = _LOADER.dlerror
_ERROR.argtypes, _ERROR.restype = (), ctypes.c_char_p

# Libraries of OpenMP that a kernel may have brought: their threads wait in there for good.
_STAYING: Final = (b"libgomp.so.1", b"libomp.so", b"libomp.so.5", b"libiomp5.so")


@final
class KernelLibrary:
    """The object at `path`; its symbols stay local to it. Raises OSError where it is none."""

    __slots__ = ("__weakref__", "_handle")

    def __init__(self, path: str) -> None:
        self._handle = _Handle(path)
        for runtime in _STAYING:
            _OPEN(runtime, os.RTLD_NOW | os.RTLD_NOLOAD | os.RTLD_NODELETE)

    def address(self, symbol: str) -> int:
        """Where a function of it begins. Raises OSError where it has none of that name."""
        found = _SYMBOL(self._handle.value, symbol.encode())
        if not found:
            raise OSError(_reason())
        return int(found)


# --- private ---------------------------------------------------------------------------------


@final
class _Handle:
    """What the loader calls an object that it opened; closed with it.

    Of its own: Python finalizes an object before its weak references end, and through one of those
    another thread could still take a library that is being closed.
    """

    __slots__ = ("value",)

    def __init__(self, path: str) -> None:
        self.value = None
        self.value = _OPEN(os.fsencode(path), os.RTLD_NOW | os.RTLD_LOCAL)
        if not self.value:
            raise OSError(_reason())

    def __del__(self) -> None:
        # At the process's end threads may still be in kernels.
        if self.value and not sys.is_finalizing():
            _CLOSE(self.value)


hide_from_other_compilers((_Handle.__del__,))


def _reason() -> str:
    said = _ERROR()
    return said.decode(errors="replace") if said else "the loader gives no reason"
