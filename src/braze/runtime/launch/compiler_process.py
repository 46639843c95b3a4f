"""Running a compiler, for a limited time."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

from braze.environment import environment_of_compilers
from braze.errors import CannotBuild, CompilerExpired

_LAST_WORDS = 1.0  # seconds that a killed process is waited for


def run_compiler(
    command: Sequence[str], text: str, limit: float, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run a command with a text as its input. Raises CompilerExpired where it takes more than
    `limit` seconds, CannotBuild where it cannot be started. folder: for files of its own."""
    try:
        # A group of its own: the driver of a compiler starts others, which would run on.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            umask=0o077,
            env=environment_of_compilers(str(folder)),
        )
    except OSError as error:
        raise CannotBuild(
            f"The compiler {command[0]} could not be started: {error.strerror}. The graph runs by "
            "PyTorch's own kernels."
        ) from error
    try:
        with _RUNNING.noted(process):
            output, errors = process.communicate(text, timeout=limit)
    except subprocess.TimeoutExpired:
        end_group(process)
        raise CompilerExpired(
            f"The compiler {command[0]} did not end within {limit:g} s and was stopped. The graph "
            "runs by PyTorch's own kernels. Raise BRAZE_BUILD_TIMEOUT (or the option "
            "build_timeout), or look at why it hangs: "
            f"{' '.join(command)}",
            "a compiler that ends",
        ) from None
    except BaseException:
        end_group(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@final
class _RunningCompiler:
    """The compilers that this process waits for. They are groups of their own, and would go on when
    the process ends while a thread that nobody joins waits for one."""

    def __init__(self) -> None:
        self._processes: set[tuple[int, subprocess.Popen[str]]] = set()
        self._ended: set[tuple[int, subprocess.Popen[str]]] = set()

    @contextlib.contextmanager
    def noted(self, process: subprocess.Popen[str]) -> Iterator[None]:
        """A process, while it is waited for. Where it was ended with this one, the thread that
        waited goes no further: PyTorch's kernels would run in an interpreter that is finalized,
        and end the process by std::terminate as they ask for its lock."""
        entry = os.getpid(), process
        self._processes.add(entry)
        try:
            yield
        finally:
            if entry in self._ended and threading.current_thread() is not threading.main_thread():
                threading.Event().wait()
            self._processes.discard(entry)

    def end(self) -> None:
        """End them; a forked child leaves its parent's alone."""
        for owner, process in list(self._processes):
            if owner == os.getpid():
                self._ended.add((owner, process))
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)


_RUNNING = _RunningCompiler()
atexit.register(_RUNNING.end)


def end_group(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it started, which hold its pipes open."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError, ValueError):
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_LAST_WORDS)
