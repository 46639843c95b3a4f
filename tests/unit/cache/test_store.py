"""What is kept, who waits for whom, what goes, and what happens where nothing can be kept."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from braze.cache import private, store
from braze.cache.inventory import clear, entries_of
from braze.cache.lock import hold_lock
from braze.cache.sealed import KINDS, write_all
from braze.cache.store import Cache
from braze.errors import BrazeWarning

MIB = 1 << 20
KEY, OTHER = "0" * 32, "1" * 32


def _key(number: int) -> str:
    return f"{number:032x}"


def _never() -> bytes:
    raise AssertionError("made again")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "a" / "b", MIB)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path that no folder can be made at; private folders are the test's own."""
    monkeypatch.setattr(store, "PRIVATE", private.PrivateFolders())
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "cache"


def test_made_once_and_kept(cache: Cache, tmp_path: Path) -> None:
    assert cache.obtain("kernels", KEY, lambda: b"made", 1) == b"made"
    assert cache.obtain("kernels", KEY, _never, 1) == b"made"
    assert Cache(tmp_path / "a" / "b", MIB).read("kernels", KEY) == b"made"
    assert cache.read("kernels", OTHER) is None and cache.read("tuning", KEY) is None
    assert cache.counts == {"built": 1, "hits": 1}
    assert [path.name for path in (tmp_path / "a/b/kernels").iterdir()] == [f"{KEY}.braze"]


def test_what_is_not_accepted_is_made_again(cache: Cache) -> None:
    cache.write("tuning", KEY, b"old")
    assert cache.obtain("tuning", KEY, lambda: b"new", 1, lambda found: found == b"new") == b"new"
    assert cache.obtain("tuning", KEY, _never, 1, lambda found: found == b"new") == b"new"


def test_a_failure_leaves_nothing(cache: Cache, tmp_path: Path) -> None:
    def fail() -> bytes:
        with cache.scratch("kernels") as folder:
            (folder / "half").write_text("")
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.obtain("kernels", KEY, fail, 1)
    assert not list((tmp_path / "a/b/kernels").iterdir())


def test_threads_make_it_once(cache: Cache) -> None:
    made = []

    def make() -> bytes:
        time.sleep(0.05)
        made.append(1)
        return b"made"

    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.obtain("kernels", KEY, make, 9)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"made"] * 8 and len(made) == 1
    assert cache.counts["waited"] + cache.counts.get("hits", 0) == 7


def _fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return child


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_holder_that_dies_or_hangs_is_not_waited_for(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(store, "_GRACE", 0.0)
    cache.write("kernels", OTHER, b"")
    reading, writing = os.pipe()

    def hold() -> None:
        folder = os.open(tmp_path / "a/b/kernels", os.O_RDONLY)
        with hold_lock(folder, KEY, 1) as is_held:
            os.write(writing, b"1" if is_held else b"0")
            if how == "dies":
                os._exit(1)
            time.sleep(60)

    child = _fork(hold)
    assert os.read(reading, 1) == b"1"
    began = time.monotonic()
    assert cache.obtain("kernels", KEY, lambda: b"made", 0.3 if how == "hangs" else 30) == b"made"
    took = time.monotonic() - began
    assert took < 15 and (how == "dies" or took >= 0.3)
    os.kill(child, 9)
    os.waitpid(child, 0)
    os.close(reading), os.close(writing)


def test_a_child_that_was_forked_meanwhile_keeps_no_lock(cache: Cache, tmp_path: Path) -> None:
    with cache.making("kernels", KEY, 1):
        child = _fork(lambda: time.sleep(30))
    began = time.monotonic()
    with cache.making("kernels", KEY, 20):
        assert time.monotonic() - began < 10
    os.kill(child, 9)
    os.waitpid(child, 0)


def test_file_systems_without_locks_are_worked_on(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert cache.obtain("kernels", KEY, lambda: b"made", 30) == b"made"


def test_the_least_recently_used_goes(tmp_path: Path) -> None:
    first = Cache(tmp_path, 10 * MIB)
    for number in range(8):
        first.write("kernels", _key(number), bytes(MIB))
        os.utime(tmp_path / "kernels" / f"{_key(number)}.braze", (number, number))
    later = Cache(tmp_path, 10 * MIB)  # another process, as far as what it uses goes
    assert later.read("kernels", _key(0)) is not None  # a use
    for number in range(8, 11):
        later.write("kernels", _key(number), bytes(MIB))
    left = {entry.name[:32] for entry in entries_of(tmp_path)}
    # The tenth, with its head, is too many: two go, so that a tenth of the size is free.
    assert left == {_key(n) for n in (0, 3, 4, 5, 6, 7, 8, 9, 10)}
    assert later.counts["evicted"] == 2
    assert sum(entry.size for entry in entries_of(tmp_path)) <= 10 * MIB


def test_what_the_process_uses_is_not_evicted(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2 * MIB)
    for number in range(5):
        cache.write("kernels", _key(number), bytes(MIB))
    assert len(entries_of(tmp_path)) == 5
    Cache(tmp_path, 2 * MIB).write("kernels", _key(9), bytes(MIB))
    assert [entry.name[:32] for entry in entries_of(tmp_path)] == [_key(9)]


def test_eviction_touches_nothing_of_others(tmp_path: Path) -> None:
    cache = Cache(tmp_path, MIB)
    (tmp_path / "kernels").mkdir()
    theirs = [tmp_path / "letter", tmp_path / "kernels" / "thesis.so", tmp_path / "kernels" / "x"]
    for path in theirs[:2]:
        path.write_bytes(bytes(2 * MIB))
    theirs[2].mkdir()
    for number in range(3):
        Cache(tmp_path, MIB).write("kernels", _key(number), bytes(MIB))
    assert all(path.exists() for path in theirs) and len(entries_of(tmp_path)) == 1
    assert cache.read("kernels", _key(2)) is not None


def test_what_was_abandoned_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    (folder / "build-abcdefgh").mkdir(parents=True)
    (folder / "build-abcdefgh" / "unit.o").write_text("")
    (folder / f".{KEY}.braze.{'0' * 16}").write_text("")
    (folder / f"{OTHER}.lock").write_text("")
    fresh = folder / f"{KEY}.lock"
    fresh.write_text("")
    for path in folder.iterdir():
        if path != fresh:
            os.utime(path, (1, 1))
    Cache(tmp_path, MIB).write("kernels", KEY, b"")
    assert {path.name for path in folder.iterdir()} == {fresh.name, f"{KEY}.braze"}


def test_without_a_cache_there_is_a_folder_of_the_process(nowhere: Path) -> None:
    cache = Cache(nowhere, MIB)
    with pytest.warns(BrazeWarning, match="cannot be written.*\n.*BRAZE_CACHE_DIR") as said:
        assert cache.obtain("kernels", KEY, lambda: b"made", 1) == b"made"
        assert cache.obtain("kernels", KEY, _never, 1) == b"made"
        cache.write("tuning", KEY, b"{}")
    assert len(said) == 1
    folder = store.PRIVATE.existing
    assert folder is not None and {p.name for p in folder.iterdir()} == {"kernels", "tuning"}
    assert folder.stat().st_mode & 0o077 == 0
    private._remove(os.getpid() + 1, folder)  # a child leaves its parent's
    assert folder.is_dir()
    private._remove(os.getpid(), folder)
    assert not folder.exists()


def test_switched_off_nothing_is_said(nowhere: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache = Cache(None, MIB)
        assert cache.obtain("kernels", KEY, lambda: b"made", 1) == b"made"
        assert cache.obtain("kernels", KEY, _never, 1) == b"made"
    assert store.PRIVATE.existing is not None
    private._remove(os.getpid(), store.PRIVATE.existing)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE])
def test_a_failing_disk_costs_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowhere: Path, code: int
) -> None:
    def fail(descriptor: int, content: bytes) -> None:
        os.write(descriptor, b"a part")
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("braze.cache.sealed.write_all", fail)
    cache = Cache(tmp_path / "cache", MIB)
    with pytest.warns(BrazeWarning, match=os.strerror(code)):
        assert cache.obtain("kernels", KEY, lambda: b"made", 1) == b"made"
    assert cache.counts["not_kept"] == 1
    assert not list((tmp_path / "cache" / "kernels").iterdir())
    monkeypatch.setattr("braze.cache.sealed.write_all", write_all)
    assert cache.obtain("kernels", KEY, lambda: b"made", 1) == b"made"
    assert cache.obtain("kernels", KEY, _never, 1) == b"made"
    if store.PRIVATE.existing is not None:
        private._remove(os.getpid(), store.PRIVATE.existing)


def test_no_untrusted_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = private.PrivateFolders().get()
    assert tmp_path not in folder.parents
    private._remove(os.getpid(), folder)
    monkeypatch.setattr(private, "_USUAL", ())
    with pytest.raises(OSError, match="can be written by others"):
        private.PrivateFolders().get()


def test_every_kind_is_counted_and_cleared(tmp_path: Path) -> None:
    """The kinds are those that docs/cache.md lists: what none of them is stays for good."""
    listed = (Path(__file__).parents[3] / "docs" / "cache.md").read_text()
    assert re.findall(r"^\| `(\w+)/` \|", listed, re.M) == list(KINDS)
    cache = Cache(tmp_path, 10 * MIB)
    for kind in KINDS:
        assert cache.write(kind, KEY, b"content")
    assert {entry.kind for entry in entries_of(tmp_path)} == set(KINDS)
    assert clear(tmp_path)[0] == len(KINDS)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
