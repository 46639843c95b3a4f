"""Shared objects from memory: what was checked is what is loaded.

The system's loader wants a file. It gets one without a name that holds the bytes and that nobody
can change any more (a sealed memfd), so neither a file that is exchanged after it was checked, nor
one that is cut short while it is mapped, can do harm. Where there is no such thing, a copy in the
private folder of the process, removed when it is loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.machinery
import importlib.util
import logging
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, TypeVar, final

from braze.cache import private_folder, write_all
from braze.frozen import frozen
from braze.locks import make_lock
from braze.runtime.launch.kernel_library import KernelLibrary

_CACHE = logging.getLogger("braze.cache")
_Loaded = TypeVar("_Loaded")


@final
@frozen
class ObjectFile:
    """A shared object in memory. name: for those who read the process's mappings; key: of its
    source and toolchain, 32 hexadecimal digits."""

    name: str
    key: str
    image: bytes


def load_object(built: ObjectFile, load: Callable[[str], _Loaded]) -> _Loaded:
    """What `load` makes of the object at a path, which is there until it returns."""
    try:
        with _unnamed(built) as path:
            return load(path)
    except (OSError, AttributeError, ImportError):
        # No memfd, no /proc, or none that may be run; what is wrong with the object fails again.
        with _copied(built) as path:
            return load(path)


def load_library(built: ObjectFile) -> ctypes.CDLL:
    """The shared object in this process; its symbols stay local to it. Raises OSError."""
    return load_object(built, lambda path: ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL))


def load_kernels(built: ObjectFile) -> KernelLibrary:
    """The same, for as long as somebody holds it. Raises OSError."""
    return load_object(built, KernelLibrary)


def load_extension(name: str, built: ObjectFile) -> Any:
    """The extension module of that name. Raises ImportError, OSError."""

    def load(path: str) -> object:
        loader = importlib.machinery.ExtensionFileLoader(name, path)
        spec = importlib.util.spec_from_loader(name, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module

    return load_object(built, load)


@final
class LoadedObjects:
    """What the process has loaded, by (folder of the cache, what it was loaded as, key): the loader
    would map the same bytes a second time. found: empty; it may hold its values weakly."""

    def __init__(self, found: MutableMapping[tuple[str, ...], Any]) -> None:
        self._lock = make_lock()
        self._found = found

    def get(self, key: tuple[str, ...], load: Callable[[], _Loaded]) -> _Loaded:
        """The object of a key, loaded if it is not there."""
        found: _Loaded | None = self._found.get(key)
        if found is not None:
            _CACHE.info("hit: %s is loaded", key[-1])
            return found
        made = load()
        with self._lock:
            kept: _Loaded = self._found.setdefault(key, made)
        return kept


LOADED = LoadedObjects({})  # for good
HELD = LoadedObjects(weakref.WeakValueDictionary())  # while somebody else holds it


# --- private ---------------------------------------------------------------------------------

_SEALS = ("F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE")


@contextlib.contextmanager
def _unnamed(built: ObjectFile) -> Iterator[str]:
    descriptor = os.memfd_create(
        f"braze-{built.name}-{built.key[:8]}.so", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    )
    try:
        write_all(descriptor, built.image)
        seals = sum(getattr(fcntl, name) for name in _SEALS)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield f"/proc/self/fd{_spelled(built.key)}/{descriptor}"
    finally:
        os.close(descriptor)


def _spelled(key: str) -> str:
    """Nothing, to the system, and another text for each key: the loader takes a path that it knows
    for what it loaded from there, and descriptors have the numbers of closed ones."""
    return "".join("/." if bit == "1" else "/" for bit in f"{int(key, 16):0128b}")


@contextlib.contextmanager
def _copied(built: ObjectFile) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=private_folder(), prefix="load-") as folder:
        path = Path(folder, f"{built.key}.so")
        path.write_bytes(built.image)
        yield str(path)
