"""`BRAZE_DEBUG` writes programs that run alone, and `BRAZE_REPRO_AFTER` scripts of faults."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import braze
from tests.unit.diagnose.faults import FAULTS
from tests.unit.diagnose.models import MODELS

_FILES = [
    "01_captured.py",
    "02_rewritten.py",
    "03_loops.py",
    "04_schedule.py",
    "05_launch.py",
    "06_kernels.cpp",
    "07_benchmark.py",
]


def _ran(path: Path) -> str:
    """What the script prints: it needs nothing of Braze."""
    command = [sys.executable, "-S", "-c", _ALONE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert not done.returncode, done.stderr
    return done.stdout


_ALONE = f"""
import runpy, sys
sys.path[:0] = {[p for p in sys.path if p.endswith("site-packages")]!r}
runpy.run_path(sys.argv.pop(1), run_name="__main__")
assert "braze" not in sys.modules
"""


@pytest.mark.parametrize("name", ("losses", "attention"))
def test_every_file_runs_alone(name: str, tmp_path: Path) -> None:
    make, shape = MODELS[name]
    compiled = braze.compile(make(), options={"debug_dir": str(tmp_path)})
    compiled(torch.randn(shape, requires_grad=name == "losses")).sum().backward()
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 2 and any("backward" in folder.name for folder in folders)
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == _FILES
        results = []
        for script in _FILES[:2]:
            said = _ran(folder / script)
            assert re.search(r"[\d.]+ us a call", said)
            results.append([line for line in said.splitlines() if line.startswith("result")])
        assert results[0] == results[1] and results[0]
        timed = _ran(folder / _FILES[-1]).splitlines()
        names = re.findall(r"^kernel (\S+):", (folder / "04_schedule.py").read_text(), re.M)
        assert [line.split()[-1] for line in timed] == names
        assert all(re.match(r" *[\d.]+ us +[\d.]+ GB/s", line) for line in timed), timed
        assert "def call(inputs)" in (folder / "05_launch.py").read_text()


def test_symbolic_sizes_get_numbers(tmp_path: Path) -> None:
    options = {"debug_dir": str(tmp_path)}
    compiled = braze.compile(lambda x: torch.softmax(x, -1) * 2, dynamic=True, options=options)
    compiled(torch.randn(5, 9))
    (folder,) = tmp_path.iterdir()
    assert "result 0: (8, 8)" in _ran(folder / "01_captured.py")
    assert "softmax" in _ran(folder / "07_benchmark.py")


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = {"debug_dir": str(tmp_path / "file")}
    compiled = braze.compile(lambda x: x * 3, options=options)
    with pytest.warns(braze.exc.BrazeWarning) as said:
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    (warning,) = [str(each.message) for each in said]
    assert warning.startswith(f"BRAZE_DEBUG={str(tmp_path / 'file')!r} cannot be written: ")
    assert "directory" in warning or "exists" in warning


def test_nothing_is_written_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    braze.compile(lambda x: x + 1)(torch.ones(3))
    assert not list(tmp_path.iterdir())


def test_a_crash_writes_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, shape = MODELS["convolutional"]
    options = {"repro_after": "aot", "suppress_errors": False}
    with monkeypatch.context() as patch, torch.no_grad():
        FAULTS["crash in lowering"].plant(patch)
        with pytest.raises(braze.exc.InternalError) as raised:
            braze.compile(make(), options=options)(torch.randn(shape))
        (script,) = tmp_path.glob("braze_repros/*.py")
        assert f"This script shows it: {script}" in str(raised.value)
        assert script.read_text().count("torch.ops.aten.") == 1
        with pytest.raises(braze.exc.InternalError, match="planted"):
            runpy.run_path(str(script), run_name="__main__")


def test_level_four_looks_at_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, shape = MODELS["losses"]
    options = {"repro_after": "aot", "repro_level": 4}
    with monkeypatch.context() as patch:
        FAULTS["wrong index"].plant(patch)
        compiled = braze.compile(make(), options=options)
        with pytest.warns(braze.exc.BrazeWarning, match="lower: wrong value") as warned:
            compiled(torch.randn(shape))
        compiled(torch.randn(shape))
    assert len([w for w in warned if "wrong value" in str(w.message)]) == 1
    (script,) = tmp_path.glob("braze_repros/*.py")
    assert "constant_pad_nd" in script.read_text()
