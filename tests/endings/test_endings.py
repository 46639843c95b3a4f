"""Programs that wait, spin, fork or start something: each ends, and as in eager.

They run in processes of their own, under deadlines: what hangs is ended there and names itself.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.endings import scarcity

# For all programs of a module; each has its own deadline within.
_LONGEST = 900


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_LONGEST, env=environment, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("programs", ["loops", "threads", "processes"])
def test_programs_end_as_in_eager(programs: str) -> None:
    done = _run("tests.endings.run", f"tests.endings.{programs}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("ends") > 10


@pytest.mark.slow
def test_containers_take_their_own_items() -> None:
    done = _run("tests.endings.containers")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("\n") > 600  # each day another third; at night 2,000


@pytest.mark.slow
def test_concurrent_functions_end_as_in_eager() -> None:
    done = _run("tests.endings.concurrency")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " 0 differ" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", scarcity.LACKS)
def test_machines_that_lack_something(name: str) -> None:
    said = scarcity.run(name)
    if said.startswith("SKIPPED"):
        pytest.skip(said)
    assert said.startswith("RIGHT"), said
