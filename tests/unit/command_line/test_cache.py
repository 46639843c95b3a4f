"""`python -m braze cache`: what it shows, checks and removes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from braze.__main__ import main
from braze.cache.store import Cache


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cache = Cache(tmp_path, 1 << 20)
    for number in range(3):
        cache.write("kernels", f"{number:032x}", bytes(1000))
    cache.write("tuning", "f" * 32, b"{}")
    return tmp_path


def run(action: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(["cache", action, "--dir", str(folder)])
    return status, capsys.readouterr().out


def test_it_shows_what_is_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run("show", folder, capsys)
    assert status == 0 and str(folder) in text and "nobody else can write there" in text
    assert "entries  4" in text and "in use   yes" in text
    assert [line.split()[1] for line in text.splitlines()[-5:]] == ["3", "0", "1", "0", "0"]


def test_it_says_why_a_folder_is_not_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.chmod(0o777)
    status, text = run("show", folder, capsys)
    assert status == 0 and "can be written by others" in text and "in use   no" in text
    assert run("verify", folder, capsys)[0] == run("clear", folder, capsys)[0] == 1
    assert len(list((folder / "kernels").iterdir())) == 3


def test_it_finds_what_is_damaged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", folder, capsys) == (0, "4 of 4 entries are whole\n")
    path = folder / "kernels" / f"{1:032x}.braze"
    os.truncate(path, 500)
    (folder / "kernels" / f"{7:032x}.so").write_bytes(b"of a former version")
    status, text = run("verify", folder, capsys)
    assert status == 1 and "3 of 5" in text and f"{path}: it has 408 bytes of" in text


def test_it_removes_what_is_the_caches(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = [folder / "letter", folder / "kernels" / "thesis.so"]
    for path in mine:
        path.write_text("mine")
    (folder / "kernels" / f"{7:032x}.lock").write_text("")
    status, text = run("clear", folder, capsys)
    assert status == 0 and text.startswith("4 entries removed")
    assert [path for path in folder.rglob("*") if path.is_file()] == sorted(mine, reverse=True) or {
        path for path in folder.rglob("*") if path.is_file()
    } == set(mine)


def test_it_is_a_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "braze", "cache"],
        env={**os.environ, "BRAZE_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"path     {tmp_path}" in done.stdout and "entries  0" in done.stdout
