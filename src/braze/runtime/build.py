"""Source to a loaded shared object, through a cache on disk that processes share.

An object is kept under the hash of its source and of the toolchain. It is written under another
name and renamed, so that a reader never sees half of it; two builders of one object do the work
twice and agree.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from braze.errors import BuildFailed
from braze.ir.kernel import SourceUnit
from braze.options import Options
from braze.runtime.kept_files import kept_file
from braze.runtime.toolchain import Toolchain

_BUILDS = logging.getLogger("braze.kernel_code")
_CACHE = logging.getLogger("braze.cache")


def build(units: Sequence[SourceUnit], toolchain: Toolchain, options: Options) -> Path:
    """The shared object of the units, from the cache or built. Raises BuildFailed."""
    target = kept_file("kernels", f"{_key(units, toolchain)}.so", options)
    if target.exists():
        _CACHE.info("hit: %s", target)
        return target
    _CACHE.info("miss: %s", target)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        made = _compile_all(units, toolchain, options, Path(scratch))
        os.replace(made, target)
    return target


def load(path: Path) -> ctypes.CDLL:
    """The shared object in this process; its symbols stay local to it."""
    return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)


# --- private ---------------------------------------------------------------------------------


def _key(units: Sequence[SourceUnit], toolchain: Toolchain) -> str:
    digest = hashlib.sha256(toolchain.identity.encode())
    for unit in units:
        digest.update(b"\0" + unit.text.encode())
    return digest.hexdigest()[:32]


def _compile_all(
    units: Sequence[SourceUnit], toolchain: Toolchain, options: Options, folder: Path
) -> Path:
    if len(units) == 1:
        made = folder / "unit.so"
        _run(toolchain, units[0], made, ())
        return made
    workers = options.build_threads or os.cpu_count() or 1
    objects = [folder / f"{unit.name}.o" for unit in units]

    def compile_one(unit: SourceUnit, target: Path) -> None:
        _run(toolchain, unit, target, ("-c",))

    try:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(compile_one, units, objects))
    except RuntimeError as error:  # the process may have no more threads
        if isinstance(error, BuildFailed):
            raise
        list(map(compile_one, units, objects))
    made = folder / "unit.so"
    command = [toolchain.compiler, "-shared", "-fopenmp", "-o", str(made), *map(str, objects)]
    _check(subprocess.run([*command, *toolchain.libraries], capture_output=True, text=True))
    return made


def _run(toolchain: Toolchain, unit: SourceUnit, target: Path, extra: Sequence[str]) -> None:
    libraries = () if extra else toolchain.libraries
    command = [toolchain.compiler, *toolchain.flags, *extra, "-", "-o", str(target), *libraries]
    began = time.perf_counter()
    done = subprocess.run(command, input=unit.text, capture_output=True, text=True)
    _BUILDS.info("%s in %.2f s: %s", unit.name, time.perf_counter() - began, " ".join(command))
    _check(done)


def _check(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        raise BuildFailed(done.args, done.stderr)
