"""Opening a folder that nobody but its user and root could have put anything into.

The path is walked from "/", one folder after the other, each opened in the one before it and
looked at before the next:

    owner             root or the user
    written by others never the folder itself; on the way to it only where the sticky bit keeps
                      others from renaming what is the user's (/tmp)
    symbolic link     followed where root or the user made it, and what it leads to is walked, too

What is opened is a descriptor, so nothing can be exchanged between the look and the use. An access
control list that lets others write shows in the bits of the group.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import final

from braze.frozen import frozen

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40
_PRIVATE = 0o700


@final
@frozen
class NotTrusted:
    """Others could have put files there. reason: which folder, and why; remedy: what to do."""

    reason: str
    remedy: str = "Take the others' right to write, or name another folder in BRAZE_CACHE_DIR."


def open_trusted(path: str, create: bool, shared: bool = False) -> int | NotTrusted:
    """A descriptor of the folder, for `dir_fd`. Raises OSError where there is none.

    create: make what is missing, for the user alone. shared: others may make files of their own
    in it, as in /tmp.
    """
    names = _names(os.path.abspath(path))
    folder, where, links = os.open("/", _FOLDER), "/", 0
    try:
        fault = _fault(folder, where, is_last=False)
        while names and fault is None:
            name = names.pop()
            step = _step(folder, name, create)
            if step is not None:
                os.close(folder)
                folder, where = step, os.path.join(where, name)
                fault = _fault(folder, where, is_last=False)
                continue
            target = _link_target(folder, name, os.path.join(where, name))
            links += 1
            if isinstance(target, NotTrusted):
                return target
            if links > _MOST_LINKS:
                return NotTrusted(f"{path} leads through too many symbolic links")
            names += _names(target)
            if target.startswith("/"):
                os.close(folder)
                folder, where = os.open("/", _FOLDER), "/"
        fault = fault or _fault(folder, where, is_last=not shared)
        if fault is not None:
            return fault
        found, folder = folder, -1
        return found
    finally:
        if folder >= 0:
            os.close(folder)


def make_private(folder: int) -> None:
    """Take everybody else's rights to a folder of the user's."""
    facts = os.fstat(folder)
    if facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) != _PRIVATE:
        try:
            os.chmod(".", _PRIVATE, dir_fd=folder)
        except OSError:  # a folder that the user may not look into has no "."
            with contextlib.suppress(OSError):
                os.chmod(f"/proc/self/fd/{folder}", _PRIVATE)


def is_own_file(facts: os.stat_result) -> bool:
    """Whether it is a regular file that root or the user owns and no other can write to."""
    return (
        stat.S_ISREG(facts.st_mode)
        and facts.st_uid in (0, os.geteuid())
        and not facts.st_mode & _WRITTEN_BY_OTHERS
    )


# --- private ---------------------------------------------------------------------------------


def _names(path: str) -> list[str]:
    """The folders of a path, the last first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _step(folder: int, name: str, create: bool) -> int | None:
    """The folder of that name in another one; None where the name is not a folder's."""
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except NotADirectoryError:
        return None
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, _PRIVATE, dir_fd=folder)
    try:
        made = os.open(name, _FOLDER, dir_fd=folder)
    except NotADirectoryError:
        return None
    if stat.S_IMODE(os.fstat(made).st_mode) & _PRIVATE != _PRIVATE:
        make_private(made)  # the umask may take the user's own rights
    return made


def _link_target(folder: int, name: str, where: str) -> str | NotTrusted:
    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISLNK(facts.st_mode):
        raise NotADirectoryError(f"{where} is not a folder")
    if facts.st_uid not in (0, os.geteuid()):
        return NotTrusted(f"{where} is a symbolic link that another user made")
    return os.readlink(name, dir_fd=folder)


def _fault(folder: int, where: str, is_last: bool) -> NotTrusted | None:
    facts = os.fstat(folder)
    owner, mode = facts.st_uid, stat.S_IMODE(facts.st_mode)
    if owner not in (0, os.geteuid()) and (is_last or not _is_unmapped(owner)):
        return NotTrusted(f"{where} belongs to another user ({owner})")
    if mode & _WRITTEN_BY_OTHERS and (is_last or not mode & stat.S_ISVTX):
        return NotTrusted(f"{where} can be written by others (mode {mode:04o})")
    return None


def _is_unmapped(owner: int) -> bool:
    """Whether that is what a container shows for owners from outside, the machine's root among
    them: no user in it has the number, so none can be the owner."""
    try:
        with open("/proc/sys/kernel/overflowuid") as file:
            if owner != int(file.read()):
                return False
        with open("/proc/self/uid_map") as file:
            ranges = [list(map(int, line.split())) for line in file]
    except (OSError, ValueError):
        return False
    return not any(first <= owner < first + count for first, _, count in ranges)
