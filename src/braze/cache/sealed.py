"""Entries of the cache: a line with a checksum, and the bytes that it vouches for.

    braze-cache 1 <SHA-256 of kind, name, length and bytes> <length>\n<bytes>

The checksum is no signature: who can write the file can write the line. It tells what was cut
short, damaged or renamed; who may write is the folder's affair (trust.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
from typing import Literal, TypeAlias, final, get_args

from braze.cache.trust import is_own_file
from braze.frozen import frozen

# Folders of entries: kernels in C++, Triton's functions, which of several ways was quickest, what a
# card reaches, and library calls that no recording holds.
Kind: TypeAlias = Literal["kernels", "cubins", "tuning", "rates", "recordings"]
KINDS: tuple[Kind, ...] = get_args(Kind)

ENTRY_NAME = re.compile(r"[0-9a-f]{32}\.braze")
PART_NAME = re.compile(r"\.[0-9a-f]{32}\.braze\.[0-9a-f]{16}")
# Of an entry: a sparse file of any length costs nothing to make, and would be read into memory.
MOST_BYTES = 1 << 30

_HEAD = re.compile(rb"braze-cache 1 ([0-9a-f]{64}) ([0-9]{12})\n")
_HEAD_SIZE = 14 + 64 + 1 + 12 + 1


@final
@frozen
class Damaged:
    """An entry that cannot be used; reason: what is wrong with it."""

    reason: str


def entry_name(key: str) -> str:
    """The file name of an entry. key: 32 hexadecimal digits."""
    return f"{key}.braze"


def read_entry(folder: int, kind: str, name: str) -> bytes | Damaged | None:
    """The bytes of an entry in an open folder, checked; None where there is none.

    Nothing but a regular file is opened: a pipe would wait for its writer, a device does what it
    is for.
    """
    try:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(facts.st_mode):
            return Damaged("it is no regular file")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Damaged(f"it cannot be opened: {error.strerror}")
    try:
        return _checked(descriptor, kind, name)
    except (OSError, MemoryError) as error:
        return Damaged(f"it cannot be read: {error}")
    finally:
        os.close(descriptor)


def write_entry(folder: int, kind: str, name: str, content: bytes) -> None:
    """Put an entry in its place, whole or not at all. Raises OSError."""
    part = f".{name}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(part, flags, 0o600, dir_fd=folder)
    try:
        try:
            os.fchmod(descriptor, 0o600)  # the umask may take the user's own rights
            write_all(descriptor, _head(kind, name, content))
            write_all(descriptor, content)
        finally:
            os.close(descriptor)
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it: a disk that is nearly full takes a part."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


# --- private ---------------------------------------------------------------------------------


def _head(kind: str, name: str, content: bytes) -> bytes:
    return b"braze-cache 1 %s %012d\n" % (_checksum(kind, name, content), len(content))


def _checksum(kind: str, name: str, content: bytes) -> bytes:
    digest = hashlib.sha256(f"{kind}\0{name}\0{len(content)}\0".encode())
    digest.update(content)
    return digest.hexdigest().encode()


def _checked(descriptor: int, kind: str, name: str) -> bytes | Damaged:
    facts = os.fstat(descriptor)
    if not is_own_file(facts):
        return Damaged("another user owns it, or can write to it")
    if not _HEAD_SIZE <= facts.st_size <= _HEAD_SIZE + MOST_BYTES:
        return Damaged(f"it has {facts.st_size} bytes")
    head = _HEAD.fullmatch(os.read(descriptor, _HEAD_SIZE))
    if head is None:
        return Damaged("it does not begin as an entry does")
    length = int(head[2])
    if length != facts.st_size - _HEAD_SIZE:
        return Damaged(f"it has {facts.st_size - _HEAD_SIZE} bytes of {length}")
    content = _read_all(descriptor, length)
    if len(content) != length or _checksum(kind, name, content) != head[1]:
        return Damaged("its checksum is another one")
    return content


def _read_all(descriptor: int, length: int) -> bytes:
    found = os.read(descriptor, length)
    while len(found) < length and (more := os.read(descriptor, length - len(found))):
        found += more
    return found
