"""`braze.bisect` names the planted stage, and shrinks what shows it.

All thirty pairs of faults and models run with BRAZE_ALL_FAULTS=1; the suite has a third of them.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import braze
from braze import pipeline
from braze.__main__ import main
from braze.diagnose import Bisection
from tests.unit.diagnose.faults import FAULTS, Fault
from tests.unit.diagnose.models import MODELS

_PAIRS = [(fault, model) for fault in FAULTS for model in MODELS]
_CHOSEN = _PAIRS if os.environ.get("BRAZE_ALL_FAULTS") else _PAIRS[::3]
_STATE = SimpleNamespace(scale=2.0)


def _model(name: str) -> tuple[Callable[..., Any], torch.Tensor]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return make(), torch.randn(shape)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("model", MODELS)
def test_nothing_is_named_where_all_is_right(model: str) -> None:
    function, x = _model(model)
    found = braze.bisect(function)(x)
    assert found.suspect is None and not found.scripts, found
    assert not Path("braze_repros").exists()


def _check(fault: Fault, found: Bisection) -> None:
    suspect = found.suspect
    assert suspect is not None, found
    assert (suspect.kind, suspect.stage) == (fault.kind, fault.stage), found
    assert fault.part in suspect.part, found
    assert len(suspect.operators) <= 5, found
    assert any(fault.operator in name for name in suspect.operators), found
    files = [origin.file for origin in suspect.origins]
    # Of torch's own modules the line is in torch.
    assert files and all(f.endswith("models.py") or "torch/nn/" in f for f in files), found


@pytest.mark.parametrize(("name", "model"), _CHOSEN)
def test_the_planted_stage_is_named_and_shrunk(
    name: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    function, x = _model(model)
    with torch.no_grad():
        with monkeypatch.context() as patch:
            fault.plant(patch)
            found = braze.bisect(function, options={"verify": False})(x)
            _check(fault, found)
            (script, *_) = found.scripts
            braze.reset()
            _fails_in_the_same_way(fault, script)
        braze.reset()
        with pytest.raises(SystemExit) as right:
            runpy.run_path(str(script), run_name="__main__")
        assert not right.value.code, script.read_text()


def _fails_in_the_same_way(fault: Fault, script: Path) -> None:
    """The script: a crash of the stage, or another value."""
    text = script.read_text()
    assert fault.kind in text
    if fault.kind == "crash" and fault.stage == "lower":
        with pytest.raises(braze.exc.InternalError, match="lower"):
            runpy.run_path(str(script), run_name="__main__")
        return
    if fault.kind == "wrong value":
        with pytest.raises(SystemExit) as wrong:
            runpy.run_path(str(script), run_name="__main__")
        assert wrong.value.code, text


@pytest.mark.parametrize("model", MODELS)
def test_guards_that_hold_for_too_much_are_named(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, x = _model(model)
    right = pipeline.entry_of

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return function(x) * _STATE.scale  # type: ignore[no-any-return]

    def without_guards(*arguments: Any) -> Any:
        return replace(right(*arguments), guards=())

    monkeypatch.setattr(_STATE, "scale", 2.0)
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(pipeline, "entry_of", without_guards)
        compiled = braze.compile(scaled, fullgraph=True)
        assert torch.allclose(compiled(x), scaled(x))
        assert braze.bisect(compiled)(x).suspect is None
        _STATE.scale = 3.0
        found = braze.bisect(compiled)(x)
    assert found.suspect is not None and found.suspect.stage == "guards", found
    assert found.suspect.origins[0].file == __file__


def test_a_wrong_backward_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    function, x = _model("losses")
    name = "crash in lowering"
    with monkeypatch.context() as patch:
        FAULTS[name].plant(patch)
        found = braze.bisect(function)(x.requires_grad_())
    _check(FAULTS[name], found)
    assert x.grad is None


def test_a_call_leaves_arguments_and_modules_as_they_are() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    x = torch.randn(4, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept, state = x.clone(), torch.get_rng_state()
    assert braze.bisect(model)(x).suspect is None
    assert torch.equal(kept, x) and torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


_SCRIPT = """
import sys
import torch

@torch.compile
def f(x):
    return torch.sigmoid(x * 2) + x.sin()

print(sys.argv[1:], f(torch.randn(5)).shape)
assert __name__ == "__main__"
"""


@pytest.mark.parametrize("command", ("bisect", "minify"))
def test_a_script_is_bisected_and_minified(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("script.py").write_text(_SCRIPT)
    monkeypatch.setattr("sys.argv", ["braze"])
    assert main([command, "script.py", "--given"]) == 0
    assert "1 graphs examined: every stage computes what eager does" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        FAULTS["crash in lowering"].plant(patch)
        assert main([command, "script.py", "--given"]) == 1
    said = capsys.readouterr()
    assert "['--given'] torch.Size([5])" in said.out
    assert "lower: crash: ZeroDivisionError: planted" in said.err
    assert "operators: aten.sigmoid.default" in said.err
    assert "script.py:7 in f: return torch.sigmoid(x * 2) + x.sin()" in said.err
    scripts = list(Path().glob("braze_repros/*.py"))
    assert len(scripts) == (command == "minify")
    if scripts:  # the fault is planted in this process alone
        assert "is right by itself, in a fresh process" in said.err
