"""Environment variables reach a whole process."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import torch, braze
def f(x):
    y = x + 1
    print("shown")
    return y * 2
with torch.no_grad():
    compiled = braze.compile(f)
    assert torch.equal(compiled(torch.zeros(2)), torch.full((2,), 2.0))
print(compiled is f)
"""


def run(**variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_logs() -> None:
    done = run(BRAZE_LOGS="graph_breaks,compile_times")
    assert done.returncode == 0, done.stderr
    assert "<string>:5 [graph_breaks]" in done.stderr
    assert "[input-output]" in done.stderr
    assert "[compile_times]" in done.stderr


def test_disable() -> None:
    done = run(BRAZE_DISABLE="1")
    assert done.stdout == "shown\nTrue\n", done.stderr
    assert done.stderr == ""


def test_flags_that_the_compiler_refuses() -> None:
    done = run(BRAZE_CXXFLAGS="-foo")
    assert done.stdout == "shown\nFalse\n", done.stderr
    assert done.stderr.count("BRAZE_CXXFLAGS") == 1
    assert "error: " in done.stderr and "bug in Braze" not in done.stderr
