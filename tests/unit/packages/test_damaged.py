"""Files that are no packages, or not any more: each is refused with one kind of error."""

from __future__ import annotations

import io
import json
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.exc import InvalidPackage
from braze.packages.archive import read_archive, write_archive
from tests.unit.packages.models import Pairs

EXAMPLE = (torch.linspace(0, 1, 40).view(5, 8), {"a": [torch.ones(8)]})


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return braze.package(Pairs(), EXAMPLE, tmp_path_factory.mktemp("package") / "a.braze")


@pytest.fixture(scope="module")
def result(package: Path) -> torch.Tensor:
    made: torch.Tensor = braze.load_package(package)(*EXAMPLE)["y"]
    return made


def spans(content: bytes) -> list[tuple[str, int, int]]:
    """Each member of an archive, and the directory behind them, with its bytes."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
        starts = [entry.header_offset for entry in entries] + [archive.start_dir, len(content)]
        names = [entry.filename for entry in entries] + ["the directory"]
    return [(name, *pair) for name, *pair in zip(names, starts, starts[1:])]


def test_each_member_damaged(package: Path, result: torch.Tensor, tmp_path: Path) -> None:
    """Of every member bytes at its ends and at random places: what loads all the same is what was
    written (a time that nobody reads)."""
    content = package.read_bytes()
    rng, target = random.Random(0), tmp_path / "damaged.braze"
    refused: dict[str, int] = {}
    for name, start, end in spans(content):
        places = {*range(start, min(start + 40, end)), *range(max(end - 40, start), end)}
        places |= {rng.randrange(start, end) for _ in range(10)}
        for place in places:
            damaged = bytearray(content)
            damaged[place] ^= 1 << rng.randrange(8)
            target.write_bytes(damaged)
            try:
                archive = read_archive(target)
            except InvalidPackage as error:
                assert str(target) in str(error)
                refused[name] = refused.get(name, 0) + 1
                continue
            whole = read_archive(package)
            assert archive.head == whole.head and archive.members == whole.members
    assert len(refused) == len(spans(content)), "a member is not looked at"


def test_bytes_of_members_are_all_looked_at(package: Path, tmp_path: Path) -> None:
    """Any byte of a member's content: kernels and weights, too."""
    content, target, rng = package.read_bytes(), tmp_path / "damaged.braze", random.Random(1)
    for name, member in read_archive(package).members.items():
        start = content.index(bytes(member)) if len(member) > 16 else -1
        for _ in range(6 if start >= 0 else 0):
            damaged = bytearray(content)
            damaged[start + rng.randrange(len(member))] ^= 255
            target.write_bytes(damaged)
            with pytest.raises(InvalidPackage, match=r"damaged\.braze"):
                braze.load_package(target)
            assert name


def test_truncated(package: Path, tmp_path: Path) -> None:
    content, target = package.read_bytes(), tmp_path / "short.braze"
    cuts = {0, 1, len(content) - 1, len(content) // 2}
    for _, start, end in spans(content):
        cuts |= {start, (start + end) // 2}
    for cut in cuts:
        target.write_bytes(content[:cut])
        with pytest.raises(InvalidPackage):
            braze.load_package(target)


def foreign_zip() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("braze.json", "{}")
    return made.getvalue()


def saved_by_torch() -> bytes:
    made = io.BytesIO()
    torch.save(torch.nn.Linear(2, 2).state_dict(), made)
    return made.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"text", bytes(1000), foreign_zip(), saved_by_torch(), b"\x7fELF" + bytes(100)],
    ids=["empty", "text", "zeros", "zip", "torch.save", "elf"],
)
def test_foreign_files(content: bytes, tmp_path: Path) -> None:
    target = tmp_path / "foreign"
    target.write_bytes(content)
    with pytest.raises(InvalidPackage, match="cannot be loaded as a package"):
        braze.load_package(target)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        braze.load_package(tmp_path / "none.braze")
    with pytest.raises(OSError):
        braze.load_package(tmp_path)


def edited(package: Path, target: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """A package whose head says something else, its checksums right."""
    archive = read_archive(package)
    head = json.loads(json.dumps(archive.head))
    edit(head)
    write_archive(target, head, archive.members)
    return target


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("format", 99, "package format 99"),
        ("torch", "2.0.0", "PyTorch 2.0.0"),
        ("braze", "9.9", "Braze 9.9"),
        ("machine", "z80", "processor of the kind z80"),
        ("system", "plan9", "the system plan9"),
        ("byteorder", "middle", "byte order middle"),
        ("units", ["avx9000"], "processor with avx9000"),
    ],
)
def test_other_process(package: Path, tmp_path: Path, name: str, value: object, told: str) -> None:
    def edit(head: dict[str, Any]) -> None:
        head["process"][name] = value

    with pytest.raises(InvalidPackage, match=told):
        braze.load_package(edited(package, tmp_path / "other.braze", edit))


def places_in(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a JSON value."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    found = []
    for key, value in items if isinstance(data, (dict, list)) else ():
        found.append((*path, key))
        found += places_in(value, (*path, key)) if isinstance(value, (dict, list)) else []
    return found


def test_heads_that_lack_something(package: Path, tmp_path: Path) -> None:
    """Every key of the head in turn is taken away: no other error than one of these."""
    head = read_archive(package).head
    keys = [path for path in places_in(head) if isinstance(path[-1], str)]
    structural = [path for path in keys if "names" not in path[:-1] and "structure" not in path]
    assert len(structural) > 60
    for path in structural:

        def edit(head: dict[str, Any], path: tuple[Any, ...] = path) -> None:
            for key in path[:-1]:
                head = head[key]
            del head[path[-1]]

        target = edited(package, tmp_path / "lacking.braze", edit)
        if path == ("methods", "forward"):
            assert braze.load_package(target).methods == ()
            continue
        with pytest.raises(InvalidPackage):
            braze.load_package(target)


def test_unknown_operator(package: Path, tmp_path: Path) -> None:
    def edit(head: dict[str, Any]) -> None:
        names = head["methods"]["forward"]["program"]["names"]
        (name,) = [name for name, (kind, _) in names.items() if kind == "operator"][:1]
        names[name] = ["operator", "elsewhere::gone"]

    with pytest.raises(InvalidPackage, match=r"elsewhere::gone.*import the library"):
        braze.load_package(edited(package, tmp_path / "other.braze", edit))


def test_a_failed_write_leaves_nothing(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that was there stays, and no part of the new one."""
    target = tmp_path / "a.braze"
    shutil.copy(package, target)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space"):
        braze.package(lambda x: x + 1, (torch.ones(3),), target)
    assert target.read_bytes() == package.read_bytes()
    assert [*tmp_path.iterdir()] == [target]
