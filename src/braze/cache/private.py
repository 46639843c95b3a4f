"""A folder of this process's own, for what is not to be kept or has no trusted place."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import final

from braze.cache.trust import NotTrusted, open_trusted
from braze.locks import make_lock

_USUAL = ("/tmp", "/var/tmp", "/dev/shm")


@final
class PrivateFolders:
    """Of each process the folder, made when it is first asked for; it goes with the process."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._folders: dict[int, Path] = {}

    @property
    def existing(self) -> Path | None:
        """This process's, if it was asked for."""
        return self._folders.get(os.getpid())

    def get(self) -> Path:
        """This process's. Raises OSError where there is no place for one."""
        process = os.getpid()
        with self._lock:
            if process not in self._folders:
                self._folders[process] = folder = _made()
                atexit.register(_remove, process, folder)
            return self._folders[process]


PRIVATE = PrivateFolders()


def new_folder(place: Path, prefix: str) -> Path:
    """A folder of a new name in another one, for the user alone. Raises OSError."""
    made = tempfile.mkdtemp(prefix=prefix, dir=place)
    os.chmod(made, 0o700)  # the umask may take the user's own rights
    return Path(made)


# --- private ---------------------------------------------------------------------------------


def _made() -> Path:
    refused: list[str] = []
    for place in dict.fromkeys((tempfile.gettempdir(), *_USUAL)):
        try:
            opened = open_trusted(place, create=False, shared=True)
            if isinstance(opened, NotTrusted):
                refused.append(opened.reason)
                continue
            os.close(opened)
            return new_folder(Path(os.path.realpath(place)), "braze-")
        except OSError as error:
            refused.append(f"{place}: {error.strerror}")
    raise OSError(f"no folder for temporary files: {'; '.join(refused)}")


def _remove(process: int, folder: Path) -> None:
    if os.getpid() == process:  # a child leaves its parent's
        shutil.rmtree(folder, ignore_errors=True)
