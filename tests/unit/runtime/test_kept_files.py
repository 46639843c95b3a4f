"""Where files are kept that outlast a process, and what happens where none can be."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from braze.errors import BrazeWarning
from braze.options import Options
from braze.runtime import kept_files
from braze.runtime.kept_files import kept_file


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """A cache where no folder can be made."""
    monkeypatch.setattr(kept_files, "_OWN", {})
    (tmp_path / "file").write_text("")
    return Options(cache_dir=tmp_path / "file" / "cache")


def test_a_new_file_is_in_the_cache(tmp_path: Path) -> None:
    path = kept_file("kernels", "a.so", Options(cache_dir=tmp_path / "a" / "b"))
    assert path == tmp_path / "a" / "b" / "kernels" / "a.so"
    assert path.parent.is_dir() and not path.exists()


def test_without_a_cache_there_is_a_folder_of_the_process(refused: Options) -> None:
    with pytest.warns(BrazeWarning, match="cannot be written.*\n.*BRAZE_CACHE_DIR") as said:
        first = kept_file("kernels", "a.so", refused)
        second = kept_file("tuning", "b.json", refused)
    assert len(said) == 1
    assert first.parent.is_dir() and second.parent.is_dir()
    assert first.parent.parent == second.parent.parent
    kept_files._remove(os.getpid(), first.parent.parent)
    assert not first.parent.exists()


def test_a_cache_that_is_only_read_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Options
) -> None:
    options = Options(cache_dir=tmp_path)
    there = kept_file("kernels", "there.so", options)
    there.write_text("")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert kept_file("kernels", "there.so", options) == there
    with pytest.warns(BrazeWarning):
        assert kept_file("kernels", "new.so", options).parent != there.parent


def test_a_child_leaves_its_parents_folder(refused: Options) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = kept_file("kernels", "a.so", refused)
    kept_files._remove(os.getpid() + 1, path.parent.parent)
    assert path.parent.is_dir()


PROGRAM = """
import torch, braze
f = braze.compile(lambda x: (x * 2).sum(), fullgraph=True)
g = braze.compile(lambda x: x.cos() + 1, fullgraph=True)
x = torch.ones(100)
assert f(x).item() == 200 and torch.equal(g(x), x.cos() + 1)
explained = braze.explain(lambda x: x.sin() + 1)(x)
assert not explained.fallbacks, explained.fallbacks
"""


def test_programs_compile_without_a_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "temporary").mkdir()
    environment = {
        **os.environ,
        "BRAZE_CACHE_DIR": str(tmp_path / "file" / "cache"),
        "TMPDIR": str(tmp_path / "temporary"),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("BrazeWarning") == 1 and "cannot be written" in done.stderr
    assert not list((tmp_path / "temporary").iterdir())
