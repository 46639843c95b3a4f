"""The memory table for GPUs, its parts that run anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import memory_gpu
from benchmarks.memory_gpu import Memory, Peaks


def test_the_table_names_what_is_above_a_goal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_gpu, "describe_machine", lambda *_: {"device": "a card"})
    rows = {
        "small": {
            "eager": Memory(10, Peaks(100, 200), Peaks(100, 200)),
            "braze": Memory(10, Peaks(99, 208), Peaks(99, 212)),
        },
        "large": {
            "eager": Memory(10, Peaks(1000, 2000), Peaks(1000, 2000)),
            "braze": Memory(10, Peaks(1001, 1900), Peaks(900, 1800)),
        },
        "failed": {"eager": Memory(error="no room"), "braze": Memory(error="it died")},
    }
    memory_gpu.write(rows, ["eager", "braze"], tmp_path)
    text = (tmp_path / "memory_gpu.md").read_text()
    assert (
        "| small | 100 / 100 | 99 / 99 (0.99 / 0.99) | 200 / 200 | 208 / 212 (1.04 / 1.06) |"
        in (text)
    )
    assert "above 1.00: large 1.001." in text
    assert "above 1.05: small 1.060." in text
    assert "| failed | no room | it died | no room | it died |" in text
    assert json.loads((tmp_path / "memory_gpu.json").read_text())["cases"].keys() == {*rows}


def test_it_needs_a_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert memory_gpu.main([]) == 1
    assert "no CUDA device" in capsys.readouterr().err
