"""`python -m braze run`: the script runs as it does alone, and a summary ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.architecture.tree import ROOT

SCRIPT = """
import sys
import torch
from beside import SCALE

@torch.compile
def loss(model, x):
    y = model(x)
    print("seen", sys.argv[1:])
    return y.square().mean() * SCALE

if __name__ == "__main__":
    model = torch.nn.Linear(8, 8)
    for rows in (4, 5, 6):
        loss(model, torch.randn(rows, 8)).backward()
    assert model.weight.grad is not None
    if "--raise" in sys.argv:
        raise ValueError("of the script")
    sys.exit(3 if "--fail" in sys.argv else 0)
"""


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "beside.py").write_text("SCALE = 2\n")
    (folder / "train.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "braze", "run", *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{folder}", "BRAZE_DISABLE": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_summary_fits_a_screen(tmp_path: Path) -> None:
    done = _run(tmp_path, str(tmp_path / "train.py"), "--loud", "-x")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "seen ['--loud', '-x']\n" * 3
    lines = done.stderr.splitlines()
    assert lines[0].startswith("Braze: ") and " graphs of " in lines[0] and len(lines) < 24
    assert any(line.startswith("  loss: 3 calls, 0 left to eager, ") for line in lines)
    assert any(" x train.py:9 [input-output] the program does" in line for line in lines)
    assert max(map(len, lines)) <= 100


def test_exit_status_is_the_scripts(tmp_path: Path) -> None:
    done = _run(tmp_path, "-m", "train", "--fail")
    assert done.returncode == 3 and "Braze: " in done.stderr


def test_exceptions_are_shown_from_the_script_on(tmp_path: Path) -> None:
    done = _run(tmp_path, str(tmp_path / "train.py"), "--raise")
    assert done.returncode == 1 and "Braze: " in done.stderr
    assert done.stderr.count('  File "') == 1 and "ValueError: of the script\n" in done.stderr
    assert _run(tmp_path, "absent.py").returncode == 2
