"""Triton functions to cubins: built side by side, each different one once, kept on disk.

A cubin is kept under the hash of its function's source, signature and constants, of the
architecture and of Triton's version. Building is done by a process of its own
(`cubin_worker.py`), which starts at the first question and goes on as long as this process.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from braze.errors import BuildFailed
from braze.frozen import frozen
from braze.ir.kernel import DeviceFunction
from braze.options import Options
from braze.runtime.kept_files import kept_file

_WORKER = Path(__file__).with_name("cubin_worker.py")
_LOG = logging.getLogger("braze.kernel_code")


@final
@frozen
class Cubin:
    """Machine code of one function. threads: of a block; shared: bytes of dynamic shared memory;
    parameters: of the kernel: the function's own, then pointers to scratch memory that Triton
    adds and that are null."""

    name: str
    image: bytes
    threads: int
    shared: int
    parameters: int


@functools.cache
def triton_version() -> str | None:
    """The version of the installed Triton, which is not imported; None where there is none."""
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def build_cubins(
    functions: Iterable[DeviceFunction], architecture: int, options: Options
) -> dict[DeviceFunction, Cubin]:
    """The functions for a device of that architecture (90: sm_90), from the cache or built.
    Raises BuildFailed with the compiler's words."""
    wanted = {
        f: kept_file("cubins", f"{_key(f, architecture, options)}.cubin", options)
        for f in functions
    }
    missing = {path: f for f, path in wanted.items() if not path.exists()}
    if missing:
        began = time.perf_counter()
        jobs = [_job(f, path, architecture, options) for path, f in missing.items()]
        BUILDER.build(jobs, options.build_threads or os.cpu_count() or 1)
        if _LOG.isEnabledFor(logging.INFO):
            took = time.perf_counter() - began
            extra = {"origin": "", "artefact": "kernel_code"}
            _LOG.info("%d Triton functions built in %.2f s", len(jobs), took, extra=extra)
    return {function: _read(path) for function, path in wanted.items()}


@final
class CubinBuilder:
    """The process that builds: started by `start` or the first `build`, ended with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def start(self) -> None:
        """Begin to start the process, which takes a second, and do not wait for it."""
        with self._lock:
            self._running()

    def build(self, jobs: Sequence[dict[str, Any]], workers: int) -> None:
        """Have the jobs done. Raises BuildFailed for the first that failed."""
        with self._lock:
            process = self._running()
            errors = _ask(process, {"jobs": list(jobs), "workers": workers})
            if errors is None:
                self._process = None
                raise BuildFailed((str(_WORKER),), f"it ended with status {process.wait()}")
        for number, error in errors:
            raise BuildFailed(("triton.compile", jobs[number]["name"]), error)

    def stop(self) -> None:
        """End the process, if it runs."""
        with self._lock:
            if self._process is not None and self._owner == os.getpid():
                assert self._process.stdin is not None
                self._process.stdin.close()
                self._process.wait()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        """The process. A fork of this process must not write to the same pipes: it gets another
        one."""
        found = self._process
        if found is None or self._owner != os.getpid() or found.poll() is not None:
            command = [sys.executable, "-P", str(_WORKER), json.dumps(sys.path)]
            found = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._process, self._owner = found, os.getpid()
        return found


BUILDER = CubinBuilder()


# --- private ---------------------------------------------------------------------------------


def _key(function: DeviceFunction, architecture: int, options: Options) -> str:
    facts = [repr(asdict(function)), str(architecture), str(triton_version())]
    digest = hashlib.sha256("\0".join([*facts, str(_contracts(options))]).encode())
    return digest.hexdigest()[:32]


def _contracts(options: Options) -> bool:
    """Whether a product and a sum may become one operation, as in PyTorch's own kernels."""
    return options.numerics != "eager"


def _job(function: DeviceFunction, path: Path, architecture: int, options: Options) -> Any:
    job = asdict(function)
    return {
        **job,
        "target": str(path),
        "arch": architecture,
        "contract": _contracts(options),
    }


def _ask(
    process: subprocess.Popen[bytes], question: dict[str, Any]
) -> list[tuple[int, str]] | None:
    """The errors of a batch, as (job, what was said); None where the process ended."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(question).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    errors: list[tuple[int, str]] = []
    for line in process.stdout:
        answer = json.loads(line)
        if "done" in answer:
            return errors
        if answer["error"]:
            errors.append((answer["job"], answer["error"]))
    return None


def _read(path: Path) -> Cubin:
    head, image = path.read_bytes().split(b"\n", 1)
    facts = json.loads(head)
    if facts["scratch"]:
        raise BuildFailed(("triton.compile", facts["name"]), "it needs scratch memory")
    return Cubin(facts["name"], image, facts["threads"], facts["shared"], facts["parameters"])
