"""The file of a package: a zip archive of uncompressed members, each with a checksum.

    braze.json       what the package is, and of each other member length and SHA-256
    KIND/NUMBER      shared objects and the bytes of storages

The archive's comment holds the SHA-256 of `braze.json`. The checksums find accidents, not attacks:
who writes a package writes code that its user runs.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, final

from braze.errors import InvalidPackage
from braze.frozen import frozen

_HEAD = "braze.json"
_FIRST = b"PK\x03\x04"
_COMMENT = b"braze-package 1 "
_HASH_SIZE = 64
_PART = 1 << 22  # bytes that are read at a time
_DATE = (1980, 1, 1, 0, 0, 0)  # equal programs give equal files


@final
@frozen
class Archive:
    """A package in memory, its checksums compared. members: without the head."""

    path: str
    head: dict[str, Any]
    members: Mapping[str, bytearray]

    def member(self, name: object) -> bytearray:
        """The bytes of a member. Raises InvalidPackage."""
        found = self.members.get(name) if isinstance(name, str) else None
        if found is None:
            raise damaged(self.path, f"it has no member {name!r}")
        return found


def damaged(path: object, reason: str) -> InvalidPackage:
    """What is raised for a file that is not what was written."""
    return InvalidPackage(
        f"{path} cannot be loaded as a package: {reason}. It is damaged, or was not written by "
        "braze.package: write it again."
    )


def write_archive(path: Path, head: Mapping[str, Any], members: Mapping[str, Any]) -> None:
    """Put a package in its place, whole or not at all. members: buffers. Raises OSError."""
    facts = {
        name: {"bytes": memoryview(content).nbytes, "sha256": _sha256(content)}
        for name, content in members.items()
    }
    text = json.dumps({**head, "members": facts}, indent=1, allow_nan=False).encode()
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with zipfile.ZipFile(part, "x", zipfile.ZIP_STORED) as archive:
            archive.comment = _COMMENT + _sha256(text).encode()
            for name, content in {_HEAD: text, **members}.items():
                entry = zipfile.ZipInfo(name, _DATE)
                with archive.open(entry, "w", force_zip64=True) as file:
                    file.write(memoryview(content).cast("B"))
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def is_archive(content: bytes) -> bool:
    """Whether a file with these bytes begins or ends as a package does; it may be damaged."""
    begins = content.startswith(_FIRST) and content[30:40] == _HEAD.encode()  # its first member
    return begins or content[-len(_COMMENT) - _HASH_SIZE :].startswith(_COMMENT)


def read_archive(path: Path, content: BinaryIO | None = None) -> Archive:
    """A package, read and checked. content: of the file, where it is read already. Raises
    InvalidPackage for any file that is none, OSError where the file cannot be read."""
    with open(path, "rb") if content is None else content as file:
        try:
            return _read(str(path), file, file.seek(0, os.SEEK_END))
        except OSError as error:
            if error.errno not in (None, errno.EINVAL):  # which is a place that is none
                raise
            raise damaged(path, str(error)) from error
        except InvalidPackage:
            raise
        except Exception as error:  # whatever zipfile and json say to bytes that are none of theirs
            raise damaged(path, f"{type(error).__name__}: {error}") from error


# --- private ---------------------------------------------------------------------------------


def _sha256(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: str, file: Any, size: int) -> Archive:
    with zipfile.ZipFile(file) as archive:
        comment = archive.comment
        if len(comment) != len(_COMMENT) + _HASH_SIZE or not comment.startswith(_COMMENT):
            raise damaged(path, "it does not end as a package does")
        text = _content(archive, _HEAD, size)
        if _sha256(text).encode() != comment[len(_COMMENT) :]:
            raise damaged(path, f"the checksum of {_HEAD} is another one")
        head = json.loads(bytes(text))
        facts = head.pop("members")
        if {*facts, _HEAD} != {*archive.namelist()} or len(facts) + 1 != len(archive.namelist()):
            raise damaged(path, "it has other members than it says")
        members = {}
        for name, fact in facts.items():
            members[name] = content = _content(archive, name, size)
            if len(content) != fact["bytes"] or _sha256(content) != fact["sha256"]:
                raise damaged(path, f"the checksum of {name} is another one")
    return Archive(path, head, members)


def _content(archive: zipfile.ZipFile, name: str, size: int) -> bytearray:
    """The bytes of a member, which is not compressed: it is no longer than the file is."""
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > size:
        raise damaged(archive.filename, f"{name} is compressed, or longer than the file")
    content = bytearray(entry.file_size)
    with archive.open(entry) as member:
        view, read = memoryview(content), 0
        while read < len(content) and (part := member.read(min(len(content) - read, _PART))):
            view[read : read + len(part)] = part
            read += len(part)
        if read != len(content) or member.read(1):
            raise damaged(archive.filename, f"{name} is cut short")
    return content
