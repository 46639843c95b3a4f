"""`python -m braze bench`: systems side by side, each with a model of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from braze.__main__ import main
from braze.command_line.bench import SYSTEMS, measure
from braze.errors import UserError

MODEL = """
import torch

def make():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    return model, torch.randn(4, 8)
"""


def _model(folder: Path) -> str:
    (folder / "model.py").write_text(MODEL)
    return f"{folder / 'model.py'}:make"


@pytest.mark.parametrize("training", [[], ["--training"]])
def test_table_has_a_row_a_system(
    tmp_path: Path, training: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["bench", _model(tmp_path), "--rounds", "3", "--systems", "eager,braze", *training]
    assert main(given) == 0
    head, eager, braze = capsys.readouterr().out.splitlines()
    assert head.split() == "first call median least of eager differs by".split()
    assert eager.startswith("eager ") and " 1.00 " in eager and eager.endswith("0.0e+00")
    assert braze.startswith("braze ") and float(braze.split()[-1]) < 1e-5


def test_torch_compile_is_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def compile_nothing(target: Callable[..., Any]) -> Callable[..., Any]:
        asked.append(target)
        return target

    monkeypatch.setattr(torch, "compile", compile_nothing)
    timings = measure(lambda: (torch.sin, torch.ones(3)), [*SYSTEMS], 2, training=False)
    assert [*timings] == ["eager", "torch.compile", "braze"] and asked == [torch.sin]
    assert all(len(timing.milliseconds) == 2 for timing in timings.values())
    assert timings["braze"].difference < 1e-6


def test_what_lies_beside_the_file_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "neighbour_of_bench.py").write_text(MODEL)
    (tmp_path / "model.py").write_text("from neighbour_of_bench import make\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir("/")
    given = ["bench", f"{tmp_path / 'model.py'}:make", "--rounds", "1", "--systems", "eager"]
    assert main(given) == 0 and "eager" in capsys.readouterr().out


def test_wrong_results_are_seen() -> None:
    made = iter([(torch.sin, torch.ones(3)), (torch.cos, torch.ones(3))])
    timings = measure(lambda: next(made), ["eager", "braze"], 1, training=False)
    assert timings["braze"].difference > 0.1


def test_unknown_names_are_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'make'"):
        main(["bench", _model(tmp_path).replace(":make", ":mak")])
    with pytest.raises(UserError, match="Unknown system 'brace'"):
        main(["bench", _model(tmp_path), "--systems", "brace"])
