"""`python -m braze doctor`: what it says is there, and what to do where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import braze
from braze.__main__ import main
from braze.command_line.doctor import Finding, examine


def _of(subject: str) -> list[Finding]:
    return [finding for finding in examine() if finding.subject == subject]


def test_it_says_what_this_machine_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert f"PyTorch {torch.__version__}" in said and "C++ compiler" in said
    assert torch.backends.cpu.get_cpu_capability() in said
    assert "compile, cpu" in said and "right, in" in said
    assert said.endswith("Nothing is missing.\n")


def test_a_missing_compiler_is_named_and_how_to_get_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    braze.reset()
    with braze.config.patch(compiler="no-such-compiler", cache=False):
        assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "! C++ compiler" in said and "apt install g++" in said
    assert "Missing: C++ compiler, compile, cpu." in said


def test_a_folder_that_others_write_is_no_cache(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with braze.config.patch(cache_dir=tmp_path):
        (found,) = _of("cache")
    assert found.state == "note" and "can be written by others" in found.text
    assert "BRAZE_CACHE_DIR" in found.remedy


def test_unknown_variables_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAZE_LOGZ", "guards")
    monkeypatch.setenv("BRAZE_VERIFY", "0")
    found = {finding.text: finding for finding in _of("environment")}
    assert found["BRAZE_LOGZ=guards"].state == "note"
    assert found["BRAZE_VERIFY=0"].state == "ok"
