"""`BRAZE_TRACE` writes every compile as a line, and `braze.on_event` tells of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.__main__ import main
from braze.compile_records import LISTENERS, CompileEvent
from braze.report.trace_folder import TraceFolder

_SCRIPT = """
import torch, braze
weight = torch.full((64, 64), 1234.5)
f = braze.compile(lambda x: torch.relu(x @ weight) * 2)
f(torch.ones(3, 64, requires_grad=True)).sum().backward()
g = braze.compile(lambda x: print("broke") or x + 1)
g(torch.ones(2))
"""


def test_events_begin_and_end_with_a_record() -> None:
    told: list[CompileEvent] = []
    stop = braze.on_event(told.append)
    try:
        braze.compile(lambda x: torch.relu(x) * 2)(torch.ones(3))
    finally:
        stop()
    braze.compile(lambda x: torch.relu(x) * 3)(torch.ones(3))
    begin, end = told
    assert (begin.kind, end.kind) == ("begin", "end") and begin.record is None
    record = end.record
    assert record is not None and record.outcome == "graph" and record.origin == end.origin
    names = [name for name, _, _ in record.spans]
    assert {"capture", "rewrite", "lower", "inline", "codegen", "link"} <= {*names}
    assert all(0 <= a <= b <= record.seconds for _, a, b in record.spans)
    inside = {name: (a, b) for name, a, b in record.spans}
    assert inside["schedule"][0] <= inside["inline"][0] <= inside["inline"][1]
    assert inside["inline"][1] <= inside["schedule"][1]


def test_a_listener_that_raises_is_warned_of() -> None:
    def raises(event: CompileEvent) -> None:
        raise ValueError("mine")

    stop = braze.on_event(raises)
    try:
        with pytest.warns(braze.exc.BrazeWarning, match="ValueError: mine"):
            compiled = braze.compile(lambda x: x + 1, fullgraph=True)
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    finally:
        stop()
    with pytest.raises(braze.exc.UserError, match="takes a function"):
        braze.on_event(3)  # type: ignore[arg-type]


def test_a_script_is_traced_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAZE_TRACE", str(tmp_path / "trace"))
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True)
    (written,) = (tmp_path / "trace").glob("*.jsonl")
    lines: list[dict[str, Any]] = [json.loads(line) for line in written.read_text().splitlines()]
    outcomes = [line["outcome"] for line in lines]
    assert outcomes.count("backward") == 1 and outcomes.count("graph") >= 2
    first = next(line for line in lines if "relu" in str(line["ops"]))
    assert first["guards"] and first["graphs"] and "relu" in str(first["kernels"])
    assert ["rewrite", "remove_dead_nodes"] in [each[:2] for each in first["passes"]]
    assert any(line["break"] for line in lines)
    assert "1234.5" not in written.read_text()

    assert main(["report", str(tmp_path / "trace")]) == 0
    said = capsys.readouterr().out
    assert f"{len(lines)} compiles" in said and "graph breaks" in said and "No weights" in said
    trace = json.loads((tmp_path / "trace" / "perfetto.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    whole = [event for event in events if "args" in event]
    assert len(whole) == len(lines)
    for event in events:  # each inside of the compile that it is a part of
        assert any(
            w["ts"] - 1 <= event["ts"] and event["ts"] + event["dur"] <= w["ts"] + w["dur"] + 1
            for w in whole
        ), event
    assert main(["report", str(tmp_path)]) == 1
    assert "was BRAZE_TRACE set" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    stop = LISTENERS.add(TraceFolder(tmp_path / "file"))
    try:
        with pytest.warns(braze.exc.BrazeWarning, match="BRAZE_TRACE=.*file' cannot be written"):
            compiled = braze.compile(lambda x: x - 1)
            assert torch.equal(compiled(torch.ones(2)), torch.zeros(2))
    finally:
        stop()
