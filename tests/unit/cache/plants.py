"""Ways to plant or damage an entry of the cache, made from tables.

Each is done to a folder by somebody, as files are; what may come of it follows from the table
alone, by rules that do not look at how the cache is written.
"""

from __future__ import annotations

import itertools
import os
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from braze.cache.sealed import write_entry

ROOT, VICTIM, ATTACKER = 0, 65534, 1234
OWNERS = {"root": ROOT, "victim": VICTIM, "attacker": ATTACKER}


@final
@dataclass(frozen=True)
class GuardContext:
    """Where a case takes place.

    base: a folder of root's, that everybody may enter; kind, name: of the entry that the victim
    asks for; good, evil: shared objects, of which the second leaves a mark when it is loaded.
    """

    base: Path
    kind: str
    name: str
    good: bytes
    evil: bytes

    @property
    def cache(self) -> Path:
        """What BRAZE_CACHE_DIR names."""
        return self.base / "parent" / "cache"

    @property
    def folder(self) -> Path:
        """Where the entries are."""
        return self.cache / self.kind

    @property
    def entry(self) -> Path:
        """The file of the entry."""
        return self.folder / self.name

    def make(self, owner: int = VICTIM) -> None:
        """The folders, as the cache makes them."""
        for folder in (self.cache.parent, self.cache, self.folder):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)
            os.chown(folder, owner, owner)

    def put(self, content: bytes, owner: int, mode: int = 0o600, kind: str = "") -> None:
        """An entry with its checksum: everybody can compute that."""
        folder = os.open(self.folder, os.O_RDONLY)
        write_entry(folder, kind or self.kind, self.name, content)
        os.close(folder)
        self.entry.chmod(mode)
        os.chown(self.entry, owner, owner)


@final
@dataclass(frozen=True)
class Plant:
    """One way. uses_cache: whether the victim's cache is to be used nevertheless, and the entry to
    be built anew there; None where both will do. hits: the entry is good, and is to be found.
    others: it needs other users, so that only root can try it."""

    name: str
    do: Callable[[GuardContext], None]
    uses_cache: bool | None = True
    hits: bool = False
    others: bool = True
    umask: int = 0o022


def all_plants() -> list[Plant]:
    """Every way, in a fixed order."""
    made = [
        *_permissions(),
        *_file_permissions(),
        *_links(),
        *_file_kinds(),
        *_damages(),
        *_swaps(),
        *_umasks(),
    ]
    assert len({plant.name for plant in made}) == len(made)
    return made


# --- folders: place x owner x mode ---------------------------------------------------------------

_MODES = (0o700, 0o755, 0o775, 0o770, 0o720, 0o702, 0o777, 0o1777, 0o1775, 0o2770, 0o2755)


def _permissions() -> Iterator[Plant]:
    places = ("parent", "cache", "folder")
    for place, (who, owner), mode in itertools.product(places, OWNERS.items(), _MODES):

        def do(
            world: GuardContext, place: str = place, owner: int = owner, mode: int = mode
        ) -> None:
            world.make()
            world.put(world.evil, ATTACKER, 0o644)
            path = {"parent": world.cache.parent, "cache": world.cache, "folder": world.folder}[
                place
            ]
            os.chown(path, owner, owner)
            path.chmod(mode)

        written = bool(mode & 0o022)
        kept = place != "folder" and bool(mode & stat.S_ISVTX)
        trusted = owner != ATTACKER and (kept or not written)
        can_enter = owner == VICTIM or bool(mode & stat.S_IXOTH)
        can_write = place != "folder" or owner == VICTIM
        uses = trusted and can_enter and can_write
        yield Plant(f"{place} of {who} {mode:04o}", do, uses)


def _file_permissions() -> Iterator[Plant]:
    for (who, owner), mode in itertools.product(OWNERS.items(), (0o644, 0o664, 0o646, 0o666)):
        if owner != ATTACKER and not mode & 0o022:
            continue  # nobody else could have written it

        def do(world: GuardContext, owner: int = owner, mode: int = mode) -> None:
            world.make()
            world.put(world.evil, owner, mode)

        yield Plant(f"entry of {who} {mode:04o}", do)

    def hard_link(world: GuardContext) -> None:
        world.make()
        world.put(world.evil, ATTACKER, 0o644)
        os.link(world.entry, world.base / "theirs")

    yield Plant("hard link to the attacker's", hard_link)


# --- links ---------------------------------------------------------------------------------------


def _links() -> Iterator[Plant]:
    for place, (who, owner), target in itertools.product(
        ("parent", "cache", "folder"), OWNERS.items(), ("attacker", "victim", "itself", "nothing")
    ):

        def do(
            world: GuardContext, place: str = place, owner: int = owner, target: str = target
        ) -> None:
            theirs = OWNERS.get(target, VICTIM)
            world.make(theirs)
            world.put(world.evil, ATTACKER, 0o644)
            path = {"parent": world.cache.parent, "cache": world.cache, "folder": world.folder}[
                place
            ]
            if place != "parent":
                os.chown(world.cache.parent, VICTIM, VICTIM)
            if place == "folder":
                os.chown(world.cache, VICTIM, VICTIM)
            elsewhere = world.base / "elsewhere"
            path.rename(elsewhere)
            to = {"itself": path, "nothing": world.base / "nothing"}.get(target, elsewhere)
            path.symlink_to(to)
            os.chown(path, owner, owner, follow_symlinks=False)

        uses = owner != ATTACKER and target == "victim"
        yield Plant(f"{place} a link of {who} to {target}", do, uses)
    for (who, owner), target in itertools.product(
        OWNERS.items(), ("attacker's file", "victim's file", "nothing", "/dev/zero", "itself")
    ):

        def put_link(world: GuardContext, owner: int = owner, target: str = target) -> None:
            world.make()
            world.put(world.evil, ATTACKER if target.startswith("attacker") else VICTIM, 0o644)
            elsewhere = world.base / "elsewhere"
            world.entry.rename(elsewhere)
            to = {"nothing": world.base / "no", "/dev/zero": Path(target), "itself": world.entry}
            world.entry.symlink_to(to.get(target, elsewhere))
            os.chown(world.entry, owner, owner, follow_symlinks=False)

        yield Plant(f"entry a link of {who} to {target}", put_link)

    def lock_link(world: GuardContext) -> None:
        world.make()
        precious = world.base / "precious"
        precious.write_text("precious")
        os.chown(precious, VICTIM, VICTIM)
        lock = world.folder / f"{world.name.partition('.')[0]}.lock"
        lock.symlink_to(precious)
        os.chown(lock, ATTACKER, ATTACKER, follow_symlinks=False)

    yield Plant("lock a link to a file", lock_link)


# --- what is no file -----------------------------------------------------------------------------


def _folder(path: Path) -> None:
    path.mkdir()


def _full_folder(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("")


def _bound(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket has about a hundred characters
    socket.socket(socket.AF_UNIX).bind(path.name)
    os.chdir(here)


def _device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))


def _sparse(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, 1 << 42)


def _empty(path: Path) -> None:
    path.touch(0o600)


_KINDS: dict[str, tuple[Callable[[Path], None], bool | None]] = {
    "pipe": (os.mkfifo, True),
    "folder": (_folder, None),
    "full folder": (_full_folder, None),
    "socket": (_bound, True),
    "device": (_device, True),
    "sparse file": (_sparse, True),
    "empty file": (_empty, True),
}


def _file_kinds() -> Iterator[Plant]:
    for (name, (make, uses)), place in itertools.product(_KINDS.items(), ("entry", "lock")):
        for who, owner in OWNERS.items():

            def do(
                world: GuardContext,
                make: Callable[[Path], None] = make,
                owner: int = owner,
                place: str = place,
            ) -> None:
                world.make()
                lock = world.folder / f"{world.name.partition('.')[0]}.lock"
                path = world.entry if place == "entry" else lock
                make(path)
                os.chown(path, owner, owner)

            yield Plant(f"{place} a {name} of {who}", do, uses if place == "entry" else True)
    for place in ("parent", "cache", "folder"):
        for name in ("pipe", "empty file"):

            def instead(
                world: GuardContext,
                make: Callable[[Path], None] = _KINDS[name][0],
                place: str = place,
            ) -> None:
                world.make()
                path = {"parent": world.cache.parent, "cache": world.cache, "folder": world.folder}[
                    place
                ]
                path.rename(world.base / "elsewhere")
                make(path)
                os.chown(path, VICTIM, VICTIM)

            yield Plant(f"{place} a {name}", instead, uses_cache=False)


# --- damage --------------------------------------------------------------------------------------

_HEAD = 92
_LENGTHS = (0, 1, 13, 14, 15, 78, 79, 91, 92, 93, 96, 156, 200, 500, 1000, 2000, 4096, 8192, 12288)
_FLIPPED = (0, 5, 12, 14, 40, 77, 78, 79, 90, 91)
_FLIPPED_BEHIND = (0, 4, 16, 18, 24, 32, 40, 52, 54, 64, 100, 200, 512, 1024, 2048, 4096, 8192)


def _damages() -> Iterator[Plant]:
    def change(alter: Callable[[bytes], bytes]) -> Callable[[GuardContext], None]:
        def do(world: GuardContext) -> None:
            world.make()
            world.put(world.good, VICTIM)
            world.entry.write_bytes(alter(world.entry.read_bytes()))

        return do

    def flip(place: int) -> Callable[[bytes], bytes]:
        return lambda text: text[:place] + bytes([text[place] ^ 0x55]) + text[place + 1 :]

    def cut(length: int) -> Callable[[bytes], bytes]:
        return lambda text: text[:length]

    for length in (*_LENGTHS, -1, -64):
        yield Plant(f"cut to {length}", change(cut(length)), others=False)
    for place in (*_FLIPPED, *[_HEAD + place for place in _FLIPPED_BEHIND], -1):
        at = place if place >= 0 else place - 1
        yield Plant(f"byte {place} flipped", change(flip(at)), others=False)
    longer: dict[str, Callable[[bytes], bytes]] = {
        "one byte more": lambda text: text + b"\0",
        "a page more": lambda text: text + b"\0" * 4096,
        "twice": lambda text: text * 2,
        "no head": lambda text: text[_HEAD:],
        "only zeros": lambda text: bytes(len(text)),
        "zeros behind the head": lambda text: text[:_HEAD] + bytes(len(text) - _HEAD),
        "zeros in its second half": lambda text: text[: len(text) // 2].ljust(len(text), b"\0"),
        "a later format": lambda text: text.replace(b"braze-cache 1", b"braze-cache 2", 1),
        "upper case": lambda text: text[:79].upper() + text[79:],
    }
    for name, alter in longer.items():
        yield Plant(name, change(alter), others=False)


# --- entries of others ---------------------------------------------------------------------------


def _swaps() -> Iterator[Plant]:
    def renamed(world: GuardContext) -> None:
        """The entry of another key."""
        world.make()
        other = GuardContext(world.base, world.kind, "0" * 32 + ".braze", world.good, world.evil)
        other.put(other.evil, VICTIM)
        other.entry.rename(world.entry)

    def of_kind(kind: str) -> Callable[[GuardContext], None]:
        def do(world: GuardContext) -> None:
            world.make()
            world.put(world.evil, VICTIM, kind=kind)

        return do

    def bare(world: GuardContext) -> None:
        world.make()
        world.entry.write_bytes(world.evil)
        os.chown(world.entry, VICTIM, VICTIM)

    def former(world: GuardContext) -> None:
        """Of a version that had no checksums."""
        world.make()
        path = world.entry.with_suffix(".so")
        path.write_bytes(world.evil)
        os.chown(path, VICTIM, VICTIM)

    def good(world: GuardContext) -> None:
        world.make()
        world.put(world.good, VICTIM)

    def of_root(world: GuardContext) -> None:
        world.make(ROOT)
        for folder in (world.cache.parent, world.cache, world.folder):
            folder.chmod(0o755)
        world.put(world.good, ROOT, 0o644)

    yield Plant("entry of another key", renamed, others=False)
    yield Plant("entry of tuning", of_kind("tuning"), others=False)
    yield Plant("entry of cubins", of_kind("cubins"), others=False)
    yield Plant("object without a head", bare, others=False)
    yield Plant("object of a former version", former, others=False)
    yield Plant("a good entry", good, hits=True, others=False)
    yield Plant("a good entry of root", of_root, uses_cache=None, hits=True)


def _umasks() -> Iterator[Plant]:
    """Nothing is there yet: what the cache makes must be the user's alone."""
    for umask in (0, 0o002, 0o022, 0o077, 0o277, 0o777):

        def do(world: GuardContext) -> None:
            world.cache.parent.mkdir()
            world.cache.parent.chmod(0o1777)

        yield Plant(f"umask {umask:03o}", do, others=False, umask=umask)
