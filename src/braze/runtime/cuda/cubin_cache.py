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
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from braze.cache import Cache, cache_of, private_folder
from braze.environment import environment_of_compilers
from braze.errors import BuildFailed, CompilerExpired
from braze.frozen import frozen
from braze.ir.kernels.kernel import DeviceFunction
from braze.options import Options
from braze.runtime.launch.compiler_process import end_group

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
    Raises BuildFailed with the compiler's words, and CannotBuild."""
    cache = cache_of(options)
    wanted = {f: _key(f, architecture, options) for f in functions}
    found = _kept(wanted.values(), cache)
    missing = {key: f for f, key in wanted.items() if key not in found}
    if missing:
        batch = hashlib.sha256("".join(sorted(missing)).encode()).hexdigest()[:32]
        with cache.making("cubins", batch, options.build_timeout):
            found |= _kept(missing, cache)
            missing = {key: f for key, f in missing.items() if key not in found}
            if missing:
                found |= _built(missing, architecture, options, cache)
    return {function: _cubin(found[key]) for function, key in wanted.items()}


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

    def build(self, jobs: Sequence[dict[str, Any]], workers: int, limit: float = 300) -> None:
        """Have the jobs done. Raises BuildFailed for the first that failed, CompilerExpired where
        none ends for `limit` seconds."""
        with self._lock:
            process = self._running()
            try:
                errors = _ask(process, {"jobs": list(jobs), "workers": workers}, limit)
            except BaseException:  # what it says from now on answers no question of ours
                end_group(process)
                self._process = None
                raise
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
            found = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                process_group=0,
                umask=0o077,
                env=environment_of_compilers(str(private_folder())),
            )
            self._process, self._owner = found, os.getpid()
        return found


BUILDER = CubinBuilder()


# --- private ---------------------------------------------------------------------------------


def _key(function: DeviceFunction, architecture: int, options: Options) -> str:
    facts = [repr(function.facts()), str(architecture), str(triton_version())]
    digest = hashlib.sha256("\0".join([*facts, str(_contracts(options))]).encode())
    return digest.hexdigest()[:32]


def _contracts(options: Options) -> bool:
    """Whether a product and a sum may become one operation, as in PyTorch's own kernels."""
    return options.numerics != "eager"


def _kept(keys: Iterable[str], cache: Cache) -> dict[str, bytes]:
    read = {key: cache.read("cubins", key) for key in keys}
    return {key: content for key, content in read.items() if content is not None}


def _built(
    missing: Mapping[str, DeviceFunction], architecture: int, options: Options, cache: Cache
) -> dict[str, bytes]:
    """Functions that are not in the cache, built and kept; also those beside one that fails."""
    began = time.perf_counter()
    made: dict[str, bytes] = {}
    with cache.scratch("cubins") as folder:
        paths = {key: folder / key for key in missing}
        jobs = [_job(f, paths[key], architecture, options) for key, f in missing.items()]
        try:
            workers = options.build_threads or os.cpu_count() or 1
            BUILDER.build(jobs, workers, options.build_timeout)
        finally:
            for key, path in paths.items():
                if path.exists():
                    made[key] = path.read_bytes()
                    cache.write("cubins", key, made[key])
    if _LOG.isEnabledFor(logging.INFO):
        took = time.perf_counter() - began
        extra = {"origin": "", "artefact": "kernel_code"}
        _LOG.info("%d Triton functions built in %.2f s", len(jobs), took, extra=extra)
    return made


def _job(function: DeviceFunction, path: Path, architecture: int, options: Options) -> Any:
    return {
        **function.facts(),
        "target": str(path),
        "arch": architecture,
        "contract": _contracts(options),
    }


def _ask(
    process: subprocess.Popen[bytes], question: dict[str, object], limit: float
) -> list[tuple[int, str]] | None:
    """The errors of a batch, as (job, what was said); None where the process ended. Raises
    CompilerExpired where it says nothing for `limit` seconds."""
    assert process.stdin is not None and process.stdout is not None
    try:
        rest = memoryview(json.dumps(question).encode() + b"\n")
        while rest:
            rest = rest[process.stdin.write(rest) :]
    except BrokenPipeError:
        return None
    errors: list[tuple[int, str]] = []
    for line in _lines(process.stdout.fileno(), limit):
        answer = json.loads(line)
        if "done" in answer:
            return errors
        if answer["error"]:
            errors.append((answer["job"], answer["error"]))
    return None


def _lines(descriptor: int, limit: float) -> Iterator[bytes]:
    """Lines from a pipe until it is closed. Raises CompilerExpired where none comes for `limit`
    seconds."""
    waiting, rest = select.poll(), b""
    waiting.register(descriptor, select.POLLIN)
    while True:
        if not waiting.poll(limit * 1000):
            raise CompilerExpired(
                f"Triton's compiler ended nothing within {limit:g} s and was stopped. The graph "
                "runs by PyTorch's own kernels. Raise BRAZE_BUILD_TIMEOUT (or the option "
                "build_timeout)."
            )
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _cubin(content: bytes) -> Cubin:
    head, image = content.split(b"\n", 1)
    facts = json.loads(head)
    if facts["scratch"]:
        raise BuildFailed(("triton.compile", facts["name"]), "it needs scratch memory")
    return Cubin(facts["name"], image, facts["threads"], facts["shared"], facts["parameters"])
