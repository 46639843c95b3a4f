"""What a trace costs: little of a compile, and nothing of a call where there is none."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import braze
from braze.runtime.launch.timed_program import TimedProgram
from braze.trace import JOURNAL

REPEATS = 5
MOST = 0.10  # of what compiling costs this process and the C++ compiler

_TIMED = """
import resource, torch
from tests.unit.report.training_step import WORDS, step

def spent():
    users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(user)[:2]) for user in users)

tokens = torch.randint(WORDS, (2, 33))
began = spent()
step(tokens), step(tokens)
print(spent() - began)
"""


def _seconds(folder: Path, traced: bool) -> float:
    """Processor seconds of the compiles of a training step, from an empty cache."""
    folder.mkdir()
    given = {**os.environ, "BRAZE_CACHE_DIR": str(folder / "cache"), "BRAZE_VERIFY": "0"}
    if traced:
        given["BRAZE_TRACE"] = str(folder / "trace")
    command = [sys.executable, "-c", _TIMED]
    done = subprocess.run(command, env=given, check=True, capture_output=True, text=True)
    assert (folder / "trace").exists() == traced
    return float(done.stdout.split()[-1])


@pytest.mark.nightly
def test_a_trace_costs_little_of_a_compile(tmp_path: Path) -> None:
    """The median of several processes, with and without in turn."""
    pairs = [
        (_seconds(tmp_path / f"plain{n}", False), _seconds(tmp_path / f"traced{n}", True))
        for n in range(REPEATS)
    ]
    plain, traced = map(statistics.median, zip(*pairs, strict=True))
    assert traced < (1 + MOST) * plain, pairs


def test_without_a_trace_calls_time_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    right = TimedProgram.__init__

    def noted(self: TimedProgram, *arguments: object) -> None:
        made.append(self)
        right(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(TimedProgram, "__init__", noted)
    assert JOURNAL.times is None and JOURNAL.new_texts is None
    compiled = braze.compile(lambda x: torch.softmax(x.sin(), -1) @ x, fullgraph=True)
    compiled(torch.randn(4, 4))
    assert not made
