"""Run a request in a fresh process, with cache folders of its own, and read its answers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from benchmarks.request import Request

_ROOT = Path(__file__).resolve().parent.parent
_CACHE_VARIABLES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "BRAZE_CACHE_DIR": "braze",
    "CUDA_CACHE_PATH": "cuda",
}


@final
@dataclass(frozen=True, slots=True)
class Caches:
    """One folder that holds every cache of every compiler."""

    folder: Path

    def environment(self) -> dict[str, str]:
        return {name: str(self.folder / part) for name, part in _CACHE_VARIABLES.items()}


@contextlib.contextmanager
def empty_caches() -> Iterator[Caches]:
    """New, empty caches, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        yield Caches(Path(folder))


def run(
    request: Request,
    caches: Caches,
    on_phase: Callable[[str], None],
    timeout_s: float = 600.0,
) -> dict[str, Any]:
    """The worker's result, or `{"error": ...}` where the process died or took too long."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "benchmarks.worker", "--answers", str(writing)]
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(writing,),
            cwd=_ROOT,
            env={**os.environ, **caches.environment()},
            start_new_session=True,
        )
        os.close(writing)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: the log says why
            process.stdin.write(request.to_json().encode())
            process.stdin.close()
        late = threading.Timer(timeout_s, _end_group, (process,))
        late.start()
        try:
            result = _read_answers(reading, on_phase)
            status = process.wait()
        finally:
            expired = not late.is_alive()
            late.cancel()
            _end_group(process)
        return _with_log(result or _died(status, expired, timeout_s, log), log)


def children() -> set[int]:
    """The processes that this one started, and those that they did."""
    found: set[int] = set()
    left = [os.getpid()]
    while left:
        for tasks in Path(f"/proc/{left.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it ended just now
                new = {int(pid) for pid in tasks.read_text().split()} - found
                found |= new
                left += new
    return found


def end(processes: Iterable[int]) -> None:
    """Kill them."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _read_answers(reading: int, on_phase: Callable[[str], None]) -> dict[str, Any] | None:
    with os.fdopen(reading) as answers:
        for line in answers:
            message = json.loads(line)
            if message["event"] == "result":
                return message["result"]
            on_phase(message["name"])
    return None


def _died(status: int, expired: bool, timeout_s: float, log: Any) -> dict[str, Any]:
    if expired:
        return {"error": f"stopped after {timeout_s:.0f} s"}
    if status < 0:
        return {"error": f"the process died of {signal.Signals(-status).name}"}
    log.seek(0)
    last = [line for line in log.read().splitlines() if line.strip()][-1:]
    reason = re.sub(r"(?<![\w/])/(?:[\w.+-]+/)+", "", last[0]) if last else f"status {status}"
    return {"error": reason[:300]}


def _with_log(result: dict[str, Any], log: Any) -> dict[str, Any]:
    """What the process printed comes out where something failed; else it is dropped."""
    if '"error"' in json.dumps(result):
        log.seek(0)
        result = {**result, "log": log.read()[-20_000:]}
    return result


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started (torch.compile's worker processes outlive it)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
