"""The models' table for GPUs, its parts that run anywhere."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from benchmarks import models_gpu
from benchmarks.models_gpu import COLUMNS, RIVALS, Figures, TooLong, _against, _limited, _write


def test_what_takes_too_long_is_stopped() -> None:
    with pytest.raises(TooLong), _limited(0.05):
        while True:
            time.sleep(0.01)
    with _limited(60):
        pass
    time.sleep(0.06)


def test_the_files_hold_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_gpu, "describe_machine", lambda device: {"device": "a card"})
    done = Figures((2.0,), 2.0, 2.0, 1.0, 3.0, 10.0, 20.0)
    found = {
        "first": {"eager": Figures((4.0,), 4.0, 1.0, 0.1, 4.0, 9.0, 9.0), "braze": done},
        "second": {"eager": done, "braze": Figures(error="not warm after 60 s")},
    }
    _write(found, ["eager", "braze"], tmp_path)
    assert "not warm" in (tmp_path / "models_gpu.md").read_text()
    assert json.loads((tmp_path / "models_gpu.json").read_text())["cases"].keys() == {*found}


def test_only_cases_of_both_are_compared() -> None:
    fast, slow = Figures(median_ms=1.0), Figures(median_ms=2.0)
    found = {"a": {"braze": fast, "tc": slow}, "b": {"braze": slow, "tc": Figures(error="no")}}
    assert _against(found, "braze", "tc") == "braze: 0.50 of tc's time over 1 cases."
    assert _against(found, "braze-ro", "tc-ro") == ""
    assert {*RIVALS, *RIVALS.values()} <= {*COLUMNS}
