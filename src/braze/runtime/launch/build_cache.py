"""Source to a loaded shared object, through a cache on disk that processes share.

An object is kept under the hash of its source and of the toolchain. One process builds it while
others wait; each checks what it reads, and loads what it checked.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from braze.cache import cache_of
from braze.errors import BuildFailed, CannotBuild, CompilerExpired
from braze.ir.kernels.kernel import SourceUnit
from braze.options import Options
from braze.runtime.launch.compiler_process import run_compiler
from braze.runtime.launch.cpp_compiler import Toolchain, note_expiry
from braze.runtime.launch.kernel_library import KernelLibrary
from braze.runtime.launch.shared_objects import (
    HELD,
    LOADED,
    ObjectFile,
    load_extension,
    load_kernels,
    load_library,
)

_Library = TypeVar("_Library")
_BUILDS = logging.getLogger("braze.kernel_code")


def library_of(units: Sequence[SourceUnit], toolchain: Toolchain, options: Options) -> ctypes.CDLL:
    """The units' shared object in this process. Raises BuildFailed, CannotBuild."""
    key = str(options.cache_dir), "library", _key(units, toolchain)
    return LOADED.get(key, lambda: load(build(units, toolchain, options)))


def kernels_of(
    units: Sequence[SourceUnit], toolchain: Toolchain, options: Options
) -> KernelLibrary:
    """The units' kernels in this process, while somebody holds them. Raises BuildFailed,
    CannotBuild."""
    key = str(options.cache_dir), "kernels", _key(units, toolchain)
    return HELD.get(key, lambda: _loaded(build(units, toolchain, options), load_kernels))


def extension_of(name: str, unit: SourceUnit, toolchain: Toolchain, options: Options) -> object:
    """The unit as an extension module of that name. Raises BuildFailed, CannotBuild."""
    key = str(options.cache_dir), name, _key((unit,), toolchain)

    def made() -> object:
        built = build((unit,), toolchain, options)
        try:
            return load_extension(name, built)
        except (ImportError, OSError) as error:
            raise CannotBuild(f"{name} could not be loaded: {error}") from error

    return LOADED.get(key, made)


def build(units: Sequence[SourceUnit], toolchain: Toolchain, options: Options) -> ObjectFile:
    """The shared object of the units, from the cache or built. Raises BuildFailed, CannotBuild."""
    key, cache = _key(units, toolchain), cache_of(options)

    def make() -> bytes:
        with cache.scratch("kernels") as folder:
            return _compile_all(units, toolchain, options, folder).read_bytes()

    try:
        image = cache.obtain("kernels", key, make, options.build_timeout)
    except OSError as error:
        raise CannotBuild(
            f"There is no place to build kernels: {error}. "
            "The graph runs by PyTorch's own kernels.",
            "a place to build kernels",
        ) from error
    return ObjectFile(units[0].name, key, image)


def load(built: ObjectFile) -> ctypes.CDLL:
    """The shared object in this process; its symbols stay local to it. Raises CannotBuild."""
    return _loaded(built, load_library)


# --- private ---------------------------------------------------------------------------------


def _loaded(built: ObjectFile, load: Callable[[ObjectFile], _Library]) -> _Library:
    try:
        return load(built)
    except OSError as error:
        raise CannotBuild(
            f"A kernel could not be loaded: {error}. The graph runs by PyTorch's own kernels.",
            "what a kernel needs to be loaded",
        ) from error


def _key(units: Sequence[SourceUnit], toolchain: Toolchain) -> str:
    digest = hashlib.sha256(toolchain.identity.encode())
    for unit in units:
        digest.update(b"\0" + unit.text.encode())
    return digest.hexdigest()[:32]


def _compile_all(
    units: Sequence[SourceUnit], toolchain: Toolchain, options: Options, folder: Path
) -> Path:
    made = folder / "unit.so"
    if len(units) == 1:
        _run(toolchain, units[0], made, (), options)
        return made
    workers = options.build_threads or os.cpu_count() or 1
    objects = [folder / f"{unit.name}.o" for unit in units]

    def compile_one(unit: SourceUnit, target: Path) -> None:
        _run(toolchain, unit, target, ("-c",), options)

    try:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(compile_one, units, objects))
    except RuntimeError as error:  # the process may have no more threads
        if isinstance(error, (BuildFailed, CannotBuild)):
            raise
        list(map(compile_one, units, objects))
    command = [toolchain.compiler, "-shared", "-fopenmp", "-o", str(made), *map(str, objects)]
    _check(run_compiler([*command, *toolchain.libraries], "", options.build_timeout, folder))
    return made


def _run(
    toolchain: Toolchain, unit: SourceUnit, target: Path, extra: Sequence[str], options: Options
) -> None:
    libraries = () if extra else toolchain.libraries
    command = [toolchain.compiler, *toolchain.flags, *extra, "-", "-o", str(target), *libraries]
    began = time.perf_counter()
    try:
        done = run_compiler(command, unit.readable(), options.build_timeout, target.parent)
    except CompilerExpired:
        note_expiry(toolchain, options)
        raise
    _BUILDS.info("%s in %.2f s: %s", unit.name, time.perf_counter() - began, " ".join(command))
    _check(done)


# What compilers and linkers say where the machine has no more of something.
_LACKS = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "Cannot allocate memory",
    "memory exhausted",
    "out of memory",
    "Too many open files",
    "Resource temporarily unavailable",
    "terminated program",  # a part of the compiler was killed
)


def _check(done: subprocess.CompletedProcess[str]) -> None:
    """Raises BuildFailed where the compiler refuses the source, CannotBuild where it is ended."""
    if not done.returncode:
        return
    lack = next((lack for lack in _LACKS if lack in done.stderr), None)
    if done.returncode < 0 or lack is not None:
        why = done.stderr.strip() or f"it was ended by signal {-done.returncode}"
        raise CannotBuild(
            f"The compiler {done.args[0]} could not finish: {why}\nThe graph runs by PyTorch's own "
            "kernels.",
            lack or f"signal {-done.returncode}",
        )
    raise BuildFailed(done.args, done.stderr)
