"""A lock between processes, and between threads, on what one of them makes for all.

A file that is locked with `flock` while it is held, and removed afterwards. The system gives the
lock of a process that dies back; one that hangs is waited for until the time limit, and then the
work is done twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator

LOCK_NAME = re.compile(r"[0-9a-f]{32}\.lock")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05  # seconds


@contextlib.contextmanager
def hold_lock(folder: int, key: str, limit: float) -> Iterator[bool]:
    """Hold the lock of a key in an open folder; whether it is held. limit: seconds that it is
    waited for. It is not, where the time is over or the file system has no locks."""
    name = f"{key}.lock"
    descriptor = _taken(folder, name, time.monotonic() + limit)
    try:
        yield descriptor >= 0
    finally:
        if descriptor >= 0:
            # Removed while it is held: whoever locks the removed file looks, and tries anew.
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            # A child that was forked meanwhile has the descriptor too; closing would not do.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


# --- private ---------------------------------------------------------------------------------


def _taken(folder: int, name: str, deadline: float) -> int:
    pause = _FIRST_PAUSE
    while True:
        descriptor = -1
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o600, dir_fd=folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if os.path.samestat(found, os.fstat(descriptor)):
                return descriptor
            os.close(descriptor)
            continue
        except (BlockingIOError, FileNotFoundError):
            if descriptor >= 0:
                os.close(descriptor)
            if time.monotonic() >= deadline:
                return -1
        except OSError:
            if descriptor >= 0:
                os.close(descriptor)
            return -1
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
