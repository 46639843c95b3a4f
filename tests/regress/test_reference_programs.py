"""The smallest programs for what `python -m tests.fuzz.reference` found.

A file holds how `entry` is compiled, the module, and its steps, one a line, between lines `--`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.reference.program import IMPORTS, Program

ROOT = Path(__file__).parents[2]
FILES = sorted((Path(__file__).parent / "reference").glob("*.txt"))


def _program(file: Path) -> Program:
    way, text, steps = file.read_text().split("\n--\n")
    return Program(IMPORTS + text, tuple(steps.strip().splitlines()), way)


def test_no_difference(tmp_path: Path) -> None:
    """In a process of its own: it is forked for each program."""
    for file in FILES:
        (tmp_path / f"{file.stem}.py").write_text(_program(file).render())
    programs = [str(file) for file in sorted(tmp_path.glob("*.py"))]
    command = [sys.executable, "-m", "tests.fuzz.reference", "--replay", *programs]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode or f"0 of {len(FILES)} differ" not in ran.stdout:
        pytest.fail(ran.stdout + ran.stderr[-2000:])
