"""Random programs whose tensors are on a device, as compiled and recorded; the long run is
`python -m tests.fuzz --device cuda --mode reduce-overhead`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.gpu.checks import MODES, NEEDS_DEVICE

pytestmark = NEEDS_DEVICE


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [[], ["--loops"]])
def test_no_difference(kind: list[str], mode: str | None) -> None:
    """In a process that has used no device: the programs' are forked."""
    command = [sys.executable, "-m", "tests.fuzz", "--device", "cuda", "--programs", "24", *kind]
    command += [] if mode is None else ["--mode", mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
