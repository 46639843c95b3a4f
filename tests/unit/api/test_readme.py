"""What README shows runs as printed, and prints what is printed there."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

_BLOCK = re.compile(r"```(?:python)?\n(.*?)```\n", re.S)
_PRINTS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _programs() -> list[tuple[str, str]]:
    """Programs, and the block behind each: what it prints, if it prints."""
    blocks = _BLOCK.findall((ROOT / "README.md").read_text())
    pairs = zip(blocks, [*blocks[1:], ""], strict=True)
    return [(block, after) for block, after in pairs if block.startswith("import torch\n")]


def test_the_programs_are_found() -> None:
    assert ["print(" in program for program, _ in _programs()] == [False, True]


@pytest.mark.parametrize(("program", "after"), _programs())
def test_a_program_runs_as_printed(tmp_path: Path, program: str, after: str) -> None:
    path = tmp_path / "model.py"
    path.write_text(program)
    ran = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "braze" not in ran.stderr  # no warning: nothing fell back
    printed = after if "print(" in program else ""
    assert doctest.OutputChecker().check_output(printed, ran.stdout, _PRINTS), ran.stdout
