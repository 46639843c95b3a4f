"""Files that outlast a process: kernels and what was timed.

a file that is in the cache               is read there, whoever may write to it
another one                               in the cache, if its folder can be written
where it cannot (no home, a read-only     in a folder of this process, which goes with it;
file system)                              a warning says so once
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings
from pathlib import Path

from braze.errors import BrazeWarning
from braze.locks import make_lock
from braze.options import Options

_LOCK = make_lock()
# Of each process: the folder that stands for caches which cannot be written.
_OWN: dict[int, Path] = {}


def kept_file(kind: str, name: str, options: Options) -> Path:
    """Where the file is, or is to be put: in a folder that is there and can be written."""
    wanted = options.cache_dir / kind / name
    if os.path.exists(wanted) or _is_writable(wanted.parent):
        return wanted
    folder = _own_folder(options.cache_dir) / kind
    folder.mkdir(exist_ok=True)
    return folder / name


# --- private ---------------------------------------------------------------------------------


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _own_folder(refused: Path) -> Path:
    process = os.getpid()
    with _LOCK:
        if process not in _OWN:
            _OWN[process] = folder = Path(tempfile.mkdtemp(prefix="braze-"))
            atexit.register(_remove, process, folder)
            message = (
                f"{refused} cannot be written: what is compiled is kept in {folder} and goes with"
                " this process.\nSet BRAZE_CACHE_DIR to a folder that can be written."
            )
            warnings.warn(message, BrazeWarning, stacklevel=2)
        return _OWN[process]


def _remove(process: int, folder: Path) -> None:
    if os.getpid() == process:  # a child leaves its parent's
        shutil.rmtree(folder, ignore_errors=True)
