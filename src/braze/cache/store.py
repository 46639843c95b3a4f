"""Files that outlast a process: kernels, and what was timed. A cache is code: what is read from it
is run, so it is read from where nobody else can write, and checked (docs/cache.md).

    read     the cache, then the private folder of this process
    written  to the cache; to the private folder where that is switched off, not trusted, or cannot
             be written (a read-only file system, a full disk)

Nothing here raises for the state of the disk but where no place at all is left to build in.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import final

from braze.cache.inventory import evict
from braze.cache.lock import hold_lock
from braze.cache.private import PRIVATE, new_folder
from braze.cache.sealed import Damaged, Kind, entry_name, read_entry, write_entry
from braze.cache.trust import NotTrusted, make_private, open_trusted
from braze.errors import warn
from braze.locks import make_lock
from braze.options import Options

_LOG = logging.getLogger("braze.cache")
_GRACE = 5.0  # seconds beyond its time limit that whoever builds is waited for
_USED_AGAIN = 60.0  # seconds after which a use is noted anew


def always(_: bytes) -> bool:
    """Every content will do."""
    return True


@final
class Cache:
    """The cache in one folder. Safe to use from several threads and processes."""

    def __init__(self, folder: Path | None, size: int) -> None:
        """folder: None where nothing is to outlast the process. size: of all entries, in bytes."""
        self._wanted = folder
        self._size = size
        self._lock = make_lock()
        self._used: set[tuple[str, str]] = set()
        self._total: int | None = None  # bytes, as far as this process knows
        self._warned = False
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """hits, built, waited, damaged, refused, not_kept, evicted: how often, in this process."""
        with self._lock:
            return MappingProxyType(dict(self._counts))

    def read(self, kind: Kind, key: str) -> bytes | None:
        """The content that was kept under a key, checked; None where there is none, or none that
        can be used. key: 32 hexadecimal digits."""
        return self._read(kind, key, is_first=True)

    def write(self, kind: Kind, key: str, content: bytes) -> bool:
        """Keep a content; whether that could be done."""
        name = entry_name(key)
        for base in self._bases(to_write=True):
            with self._opened(base, kind, create=True) as folder:
                if folder is None:
                    continue
                try:
                    make_private(folder)
                    write_entry(folder, kind, name, content)
                except OSError as error:
                    self._say_not_written(base, error)
                    continue
            with self._lock:
                self._used.add((kind, name))
            if base == self._wanted:
                self._bound(len(content))
            return True
        self._count("not_kept")
        return False

    def obtain(
        self,
        kind: Kind,
        key: str,
        make: Callable[[], bytes],
        limit: float,
        accepts: Callable[[bytes], bool] = always,
    ) -> bytes:
        """The content kept under a key; else `make` makes it, in one process while the others
        wait, `limit` seconds at most. accepts: whether what was kept will do."""
        found = self.read(kind, key)
        if found is not None and accepts(found):
            self._count("hits")
            _LOG.info("hit: %s/%s", kind, key)
            return found
        _LOG.info("miss: %s/%s", kind, key)
        with self.making(kind, key, limit):
            found = self._read(kind, key, is_first=False)
            if found is not None and accepts(found):
                self._count("waited")
                return found
            made = make()
            self._count("built")
            self.write(kind, key, made)
            return made

    @contextlib.contextmanager
    def making(self, kind: Kind, key: str, limit: float) -> Iterator[None]:
        """One process, and one of its threads, is in here at a time; for `limit` seconds."""
        for base in self._bases(to_write=True):
            with self._opened(base, kind, create=True) as folder:
                if folder is not None:
                    with hold_lock(folder, key, limit + _GRACE):
                        yield
                    return
        yield

    @contextlib.contextmanager
    def scratch(self, kind: Kind) -> Iterator[Path]:
        """A folder to build in, which is removed. Raises OSError where there is no place for it."""
        made: Path | None = None
        for base in self._bases(to_write=True):
            with self._opened(base, kind, create=True) as folder:
                if folder is None:
                    continue
                try:
                    made = new_folder(base / kind, "build-")
                except OSError as error:
                    self._say_not_written(base, error)
                    continue
            break
        if made is None:
            made = new_folder(PRIVATE.get(), "build-")
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _read(self, kind: Kind, key: str, is_first: bool) -> bytes | None:
        """is_first: what is damaged has not been counted."""
        name = entry_name(key)
        for base in self._bases():
            with self._opened(base, kind, create=False) as folder:
                found = None if folder is None else read_entry(folder, kind, name)
                if isinstance(found, Damaged) and is_first:
                    self._count("damaged")
                    _LOG.info("damaged: %s: %s", base / kind / name, found.reason)
                elif isinstance(found, bytes) and folder is not None:
                    self._note_use(folder, kind, name)
                    return found
        return None

    def _bases(self, to_write: bool = False) -> Iterator[Path]:
        """Where entries may be, the cache first."""
        if self._wanted is not None:
            yield self._wanted
        if to_write:
            with contextlib.suppress(OSError):
                yield PRIVATE.get()
        elif (existing := PRIVATE.existing) is not None:
            yield existing

    @contextlib.contextmanager
    def _opened(self, base: Path, kind: Kind, create: bool) -> Iterator[int | None]:
        """The folder of a kind; None where it is not there or not to be used."""
        folder: int | NotTrusted | None = None
        try:
            folder = open_trusted(str(base / kind), create)
        except FileNotFoundError as error:
            if create:
                self._say_not_written(base, error)
        except OSError as error:
            self._say_not_written(base, error)
        if isinstance(folder, NotTrusted):
            self._count("refused")
            self._warn(f"The cache {base} is not used: {folder.reason}.", folder.remedy)
            folder = None
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)

    def _note_use(self, folder: int, kind: Kind, name: str) -> None:
        with self._lock:
            self._used.add((kind, name))
        with contextlib.suppress(OSError):  # others' caches, and read-only ones, are not noted
            if time.time() - os.stat(name, dir_fd=folder).st_mtime > _USED_AGAIN:
                os.utime(name, dir_fd=folder)

    def _bound(self, written: int) -> None:
        """Evict, where the cache has grown beyond its size."""
        assert self._wanted is not None
        with self._lock:
            total = None if self._total is None else self._total + written
            self._total = total
            kept = frozenset(self._used)
        if total is not None and total <= self._size:
            return
        left, removed = evict(self._wanted, self._size, kept)
        if removed:
            self._count("evicted", removed)
            _LOG.info("%d entries were evicted from %s", removed, self._wanted)
        with self._lock:
            self._total = left

    def _say_not_written(self, base: Path, error: OSError) -> None:
        if base == self._wanted:
            reason = f"The cache {base} cannot be written: {error.strerror or error}."
            self._warn(reason, "Set BRAZE_CACHE_DIR to a folder that can be written.")

    def _warn(self, reason: str, remedy: str) -> None:
        with self._lock:
            known, self._warned = self._warned, True
        if not known:
            message = f"{reason} What is compiled goes with this process.\n{remedy}"
            warn(message)

    def _count(self, what: str, amount: int = 1) -> None:
        with self._lock:
            self._counts[what] += amount


@final
class _Caches:
    """The caches of the process, one a folder."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._caches: dict[tuple[Path | None, int], Cache] = {}

    def get(self, options: Options) -> Cache:
        """The cache that the options ask for."""
        folder = Path(os.path.abspath(options.cache_dir)) if options.cache else None
        key = folder, options.cache_size << 20
        with self._lock:
            if key not in self._caches:
                self._caches[key] = Cache(*key)
            return self._caches[key]


CACHES = _Caches()


def cache_of(options: Options) -> Cache:
    """The cache that the options ask for."""
    return CACHES.get(options)
