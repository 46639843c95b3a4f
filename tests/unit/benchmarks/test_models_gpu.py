"""The models' table for GPUs, its parts that run anywhere."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from benchmarks import models_gpu
from benchmarks.models_gpu import (
    COLUMNS,
    RIVALS,
    Figures,
    TooLong,
    _against,
    _in_a_process,
    _limited,
    _with_first_calls,
    measure_case,
    write,
)
from benchmarks.models_gpu_cases import CASES
from benchmarks.processes import Caches, children, end


def test_what_takes_too_long_is_stopped() -> None:
    with pytest.raises(TooLong), _limited(0.05):
        while True:
            time.sleep(0.01)
    with _limited(60):
        pass
    time.sleep(0.06)


def test_what_a_column_in_too_long_started_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that compile would slow down what is measured behind it; others are left."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = [subprocess.Popen(command)]

    def warmed(*_: object) -> NoReturn:
        started.append(subprocess.Popen(command))
        raise TooLong

    monkeypatch.setattr(models_gpu, "_warmed", warmed)
    built: Any = SimpleNamespace(build=lambda: (None, None, None))
    assert measure_case(built, ["tc"], 0)["tc"].error
    assert started[1].wait(10) == -signal.SIGKILL
    assert started[0].pid in children() and started[0].poll() is None
    end([started[0].pid])
    assert started[0].wait(10) == -signal.SIGKILL
    end([started[0].pid])  # it is gone


def test_the_files_hold_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_gpu, "describe_machine", lambda device: {"device": "a card"})
    done = Figures((2.0,), 2.0, 2.0, 1.0, 3.0, 10.0, 20.0)
    found = {
        "first": {"eager": Figures((4.0,), 4.0, 1.0, 0.1, 4.0, 9.0, 9.0), "braze": done},
        "second": {"eager": done, "braze": Figures(error="not warm after 60 s")},
    }
    write(found, ["eager", "braze"], tmp_path)
    assert "not warm" in (tmp_path / "models_gpu.md").read_text()
    assert json.loads((tmp_path / "models_gpu.json").read_text())["cases"].keys() == {*found}


def test_only_cases_of_both_are_compared() -> None:
    fast, slow = Figures(median_ms=1.0), Figures(median_ms=2.0)
    found = {"a": {"braze": fast, "tc": slow}, "b": {"braze": slow, "tc": Figures(error="no")}}
    assert _against(found, "braze", "tc") == "braze: 0.50 of tc's time over 1 cases."
    assert _against(found, "braze-ro", "tc-ro") == ""
    assert {*RIVALS, *RIVALS.values()} <= {*COLUMNS}


def test_a_case_is_measured_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def run(command: list[str], **how: object) -> SimpleNamespace:
        commands.append(command)
        answer = {"eager": dataclasses.asdict(Figures((4.0,), 4.0, 1.0, 0.1))}
        return SimpleNamespace(returncode=0, stdout=f"a warning\n{json.dumps(answer)}\n")

    monkeypatch.setattr(subprocess, "run", run)
    row = _in_a_process("models", "a case", ["eager"], 7, 60.0, Caches(Path("nowhere")))
    assert row == {"eager": Figures((4.0,), 4.0, 1.0, 0.1)}
    assert commands[0][-8:] == "--one,a case,--systems,eager,--rounds,7,--limit,60.0".split(",")


def test_a_process_that_dies_is_part_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    died = SimpleNamespace(returncode=1, stderr="Traceback\nRuntimeError: no memory\n", stdout="")
    monkeypatch.setattr(subprocess, "run", lambda *command, **how: died)
    row = _in_a_process("models", "a case", ["eager"], 7, 60.0, Caches(Path("nowhere")))
    assert row["eager"].error == "RuntimeError: no memory"


@pytest.mark.parametrize("fill", [False, True])
def test_caches_are_a_case_s_own_and_empty_at_first(
    fill: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a program before has built is not found: first calls are of compiles."""
    found: list[tuple[str, list[str]]] = []

    def run(command: list[str], env: dict[str, str], **how: object) -> SimpleNamespace:
        case = command[command.index("--one") + 1]
        kept = Path(env["BRAZE_CACHE_DIR"])
        found.append((case, [path.name for path in kept.glob("*")]))
        kept.mkdir(parents=True, exist_ok=True)
        (kept / case).touch()
        answer = {"eager": dataclasses.asdict(Figures((4.0,), 4.0, 1.0, 0.1, 4.0, 9.0, 9.0))}
        return SimpleNamespace(returncode=0, stdout=json.dumps(answer))

    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    (tmp_path / "built before").touch()
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(models_gpu, "describe_machine", lambda device: {"device": "a card"})
    wanted = [case.name for case in CASES if "gpt2" in case.name]
    flags = ["--only", "gpt2", "--systems", "eager", "--out", str(tmp_path)]
    assert models_gpu.main([*flags, "--fill", str(int(fill))]) == 0
    empty, filled = [(name, []) for name in wanted], [(name, [name]) for name in wanted]
    assert sorted(found) == sorted([*empty, *filled] if fill else empty)


def test_first_calls_are_of_those_that_fill_the_caches() -> None:
    warm, cold = Figures((1.0,), 1.0, cold_s=0.2), Figures(cold_s=9.0)
    row = _with_first_calls({"braze": warm, "tc": warm}, {"braze": cold, "tc": Figures(error="x")})
    assert row["braze"] == Figures((1.0,), 1.0, cold_s=9.0)
    assert row["tc"] == warm
