"""Machines that lack something: a compiled function runs on, and says so, or raises a clear error.

    python -m tests.endings.scarcity [NAME ...]

Each row takes something from a process of its own: threads, memory, descriptors, room on the disk,
a home, what may be written. There the function is called, trained, and called at other sizes; it
has to give eager's results before the deadline, with at most one warning for each thing that lacks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_DEADLINE = 240.0

_PROGRAM = """
import faulthandler, os, resource, sys, warnings
import sympy, torch, braze  # SymPy: PyTorch imports it when it is first needed
torch.testing.assert_close(torch.ones(1), torch.ones(1))  # the same
torch.set_num_threads(1)
faulthandler.dump_traceback_later(DEADLINE - 20)  # where it hangs, if it does
TAKES

def function(x, w):
    return torch.tanh(x @ w).sum(-1) * 1.5

warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    compiled = braze.compile(function)
    for rows in (3, 3, 5, 8):
        x = torch.randn(rows, 4)
        found, wanted = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
        wanted.data.copy_(found.data)
        result, right = compiled(x, found), function(x, wanted)
        torch.testing.assert_close(result, right)
        result.sum().backward(); right.sum().backward()
        torch.testing.assert_close(found.grad, wanted.grad)
texts = [str(c.message).split(chr(10))[0][:160] for c in caught]
assert len(texts) == len(set(texts)), texts
print("RIGHT", texts)
"""


class Lack(NamedTuple):
    """takes: statements that take it. prepares: a folder -> variables of the environment; None
    where this machine cannot."""

    takes: str = ""
    prepares: Callable[[Path], dict[str, str] | None] = lambda folder: {}


def _as_nobody(statement: str) -> str:
    return f"os.setgid(65534); os.setuid(65534); {statement}"


def _small_disk(folder: Path) -> dict[str, str] | None:
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    return {"BRAZE_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder)}


def _read_only(folder: Path) -> dict[str, str] | None:
    command = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    return {"BRAZE_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder), "HOME": str(folder)}


def _new(folder: Path) -> dict[str, str] | None:
    return {"BRAZE_CACHE_DIR": str(folder / "cache")}


def _no_home(folder: Path) -> dict[str, str] | None:
    return {"HOME": "/nonexistent", "BRAZE_CACHE_DIR": "", "XDG_CACHE_HOME": ""}


LACKS = {
    "nothing": Lack("", _new),
    "threads and processes": Lack(
        _as_nobody("resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))"), _new
    ),
    "address space": Lack(
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096 + (64 << 20); "
        "resource.setrlimit(resource.RLIMIT_AS, (used, used))",
        _new,
    ),
    "descriptors": Lack(
        "resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')),) * 2)", _new
    ),
    "size of files": Lack("resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))", _new),
    "a compiler": Lack("os.environ['PATH'] = '/nonexistent'", _new),
    "room on the disk": Lack("", _small_disk),
    "what may be written": Lack("", _read_only),
    "a home": Lack(_as_nobody("pass"), _no_home),
}


def _is_read_by_others() -> bool:
    folders = [Path(os.__file__).resolve(), *Path(os.__file__).resolve().parents]
    return all(folder.stat().st_mode & 0o005 == 0o005 or folder.is_file() for folder in folders)


def run(name: str) -> str:
    """What the program said; begins with RIGHT, HANGS, SKIPPED or FAILS."""
    lack = LACKS[name]
    folder = Path(tempfile.mkdtemp(prefix="braze-lack-"))
    os.chown(folder, 65534, -1) if "setuid" in lack.takes else None
    try:
        if "setuid" in lack.takes and not _is_read_by_others():
            return "SKIPPED: other users cannot read this Python"
        variables = lack.prepares(folder)
        if variables is None:
            return "SKIPPED: nothing may be mounted here"
        text = _PROGRAM.replace("TAKES", lack.takes).replace("DEADLINE", str(_DEADLINE))
        environment = {**os.environ, **variables}
        try:
            done = subprocess.run(
                [sys.executable, "-c", text],
                capture_output=True,
                text=True,
                timeout=_DEADLINE,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            said = expired.stderr or b""
            said = said if isinstance(said, str) else said.decode()
            return f"HANGS for {_DEADLINE:.0f} s: {said[-1500:]}"
        if done.returncode:
            return f"FAILS with {done.returncode}: {done.stderr[-1500:]}"
        return next(line for line in done.stdout.splitlines() if line.startswith("RIGHT"))
    finally:
        subprocess.run(["umount", str(folder)], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    failed = False
    for name in sys.argv[1:] or LACKS:
        said = run(name)
        failed |= not said.startswith(("RIGHT", "SKIPPED"))
        print(f"{name}: {said}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
