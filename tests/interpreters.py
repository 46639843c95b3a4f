"""Pythons of other versions that a machine has, and scripts that check something under them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def check_under(version: str, script: Path) -> None:
    """Run a script that prints a line for each difference, and a last one, under a Python of that
    version; skip where it is this process's, or not on the machine."""
    if sys.version.startswith(version):
        pytest.skip("tested in this process")
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version}")
    done = subprocess.run([python, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:-1] == [], done.stdout


def interpreter(version: str) -> str | None:
    """A Python of that version: on the path, or one that pyenv holds."""
    versions = Path.home() / ".pyenv" / "versions"
    candidates = [shutil.which(f"python{version}"), *versions.glob(f"{version}.*/bin/python")]
    for python in filter(None, candidates):
        probe = [str(python), "-I", "-c", "import sys"]
        if not subprocess.run(probe, capture_output=True).returncode:
            return str(python)
    return None
