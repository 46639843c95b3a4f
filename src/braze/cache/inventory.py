"""What lies in a cache: listed, checked, removed; the least recently used goes first.

Only files that are named as the cache names them are touched: a user may have pointed it at a
folder with other things in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import final

from braze.cache.lock import LOCK_NAME
from braze.cache.sealed import ENTRY_NAME, KINDS, PART_NAME, Damaged, read_entry
from braze.cache.trust import NotTrusted, open_trusted
from braze.frozen import frozen

SCRATCH_NAME = re.compile(r"build-\w{8}")

_FORMER_NAME = re.compile(r"[0-9a-f]{32}\.(so|cubin|json)")  # before there were checksums
_FILLED = 0.9  # of the size, after an eviction
_ABANDONED = 24 * 3600.0  # seconds after which nobody is writing it any more


@final
@frozen
class StoredEntry:
    """A file of the cache. used: when, in seconds since the epoch; whole: no part of one, and in
    the present format."""

    kind: str
    name: str
    size: int
    used: float
    whole: bool


def entries_of(base: Path) -> list[StoredEntry]:
    """All files of the cache, but for locks and scratch folders. Folders that are not trusted are
    left out."""
    return [
        StoredEntry(
            kind,
            found.name,
            facts.st_size,
            facts.st_mtime,
            ENTRY_NAME.fullmatch(found.name) is not None,
        )
        for kind in KINDS
        for found, facts in _files(base, kind)
        if any(x.fullmatch(found.name) for x in (ENTRY_NAME, PART_NAME, _FORMER_NAME))
    ]


def evict(base: Path, limit: int, kept: Collection[tuple[str, str]]) -> tuple[int, int]:
    """Where all takes more than `limit` bytes, remove what was used longest ago until a tenth is
    free; and what was abandoned half done. kept: (kind, name) of what stays. How many bytes are
    left, and how many files went."""
    _remove_abandoned(base)
    entries = sorted(entries_of(base), key=lambda entry: entry.used)
    total, removed = sum(entry.size for entry in entries), 0
    least = limit if total <= limit else int(_FILLED * limit)
    for entry in entries:
        if total <= least:
            break
        if (entry.kind, entry.name) not in kept and remove(base, entry):
            total -= entry.size
            removed += 1
    return total, removed


def remove(base: Path, entry: StoredEntry) -> bool:
    """Remove a file; whether it went."""
    with _opened(base, entry.kind) as folder, contextlib.suppress(OSError):
        if folder is not None:
            os.unlink(entry.name, dir_fd=folder)
            return True
    return False


def damage_of(base: Path, entry: StoredEntry) -> str:
    """What is wrong with an entry, "" where nothing is."""
    if not entry.whole:
        return "it is of a former version, or was never finished"
    with _opened(base, entry.kind) as folder:
        found = None if folder is None else read_entry(folder, entry.kind, entry.name)
    if found is None:
        return "it cannot be opened"
    return found.reason if isinstance(found, Damaged) else ""


def clear(base: Path) -> tuple[int, int]:
    """Remove everything of the cache's; how many files, and of how many bytes."""
    gone = [entry for entry in entries_of(base) if remove(base, entry)]
    _remove_abandoned(base, 0.0)
    return len(gone), sum(entry.size for entry in gone)


# --- private ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(base: Path, kind: str) -> Iterator[int | None]:
    """A folder of the cache; None where there is none that is trusted."""
    try:
        folder = open_trusted(str(base / kind), create=False)
    except OSError:
        folder = NotTrusted("")
    if isinstance(folder, NotTrusted):
        yield None
        return
    try:
        yield folder
    finally:
        os.close(folder)


def _files(base: Path, kind: str) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    with _opened(base, kind) as folder:
        if folder is None:
            return
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            with os.scandir(readable) as found:
                for each in found:
                    with contextlib.suppress(OSError):
                        yield each, each.stat(follow_symlinks=False)
        finally:
            os.close(readable)


def _remove_abandoned(base: Path, age: float = _ABANDONED) -> None:
    """Parts, locks and scratch folders of processes that ended without removing them."""
    before = time.time() - age
    for kind in KINDS:
        for found, facts in list(_files(base, kind)):
            if facts.st_mtime > before:
                continue
            if PART_NAME.fullmatch(found.name) or LOCK_NAME.fullmatch(found.name):
                with contextlib.suppress(OSError):
                    os.unlink(base / kind / found.name)
            elif SCRATCH_NAME.fullmatch(found.name):
                shutil.rmtree(base / kind / found.name, ignore_errors=True)
