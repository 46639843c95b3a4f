"""Which logs are shown, and how a line looks."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import braze
from braze.compile_records import BreakNote
from braze.errors import InvalidOption
from braze.report.logs import set_logs, shown_logs
from braze.trace import ARTEFACTS, CompileRecorder, Journal


@pytest.fixture(autouse=True)
def _quiet_afterwards() -> Iterator[None]:
    set_logs()
    yield
    set_logs()


@pytest.fixture
def recorder() -> CompileRecorder:
    return CompileRecorder(Journal(), "forward", "model.py:10")


def test_quiet_by_default(recorder: CompileRecorder, capsys: pytest.CaptureFixture[str]) -> None:
    recorder.emit("fusion", "x")
    assert shown_logs() == ()
    assert capsys.readouterr().err == ""


def test_the_place_comes_first(
    recorder: CompileRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    set_logs("graph_breaks")
    note = BreakNote("explicit", "the program asks for it", "remove graph_break()", "model.py:12")
    recorder.note_break(note)
    recorder.emit("fusion", "not shown")
    assert capsys.readouterr().err == (
        "model.py:12 [graph_breaks] the program asks for it [explicit]\n  remove graph_break()\n"
    )


def test_programs_begin_on_their_own_line(
    recorder: CompileRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    set_logs("output_code")
    recorder.emit("output_code", "float y;\nint x;\n")
    assert capsys.readouterr().err == "model.py:10 [output_code]\nfloat y;\nint x;\n"


def test_a_stage_may_log_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    set_logs(fusion=True)
    logging.getLogger("braze.fusion").info("%d loops fused", 3)
    assert capsys.readouterr().err == "[fusion] 3 loops fused\n"


def test_several_ways_to_ask() -> None:
    set_logs("graph_breaks, recompiles")
    assert set(shown_logs()) == {"graph_breaks", "recompiles"}
    set_logs("guards", recompiles=True)
    assert set(shown_logs()) == {"guards", "recompiles"}
    set_logs("+guards")
    assert set(shown_logs()) == {"guards"}
    set_logs("all", bytecode=False)
    assert set(shown_logs()) == set(ARTEFACTS) - {"bytecode"}
    set_logs(guards=False)
    assert shown_logs() == ()


def test_unknown_logs_are_named() -> None:
    with pytest.raises(InvalidOption, match="graph_breaks") as caught:
        set_logs("graph_break")
    assert all(repr(name) in str(caught.value) for name in ARTEFACTS)
    with pytest.raises(InvalidOption, match="Did you mean 'guards'"):
        set_logs(guard=True)
    with pytest.raises(InvalidOption, match="takes names"):
        set_logs(3)  # type: ignore[arg-type]


def test_lines_are_not_printed_twice_where_the_program_logs_too(
    recorder: CompileRecorder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, root = io.StringIO(), logging.getLogger()
    monkeypatch.setattr(root, "handlers", [logging.StreamHandler(theirs)])
    monkeypatch.setattr(root, "level", logging.INFO)
    set_logs()
    recorder.emit("fusion", "quiet")
    set_logs("fusion")
    recorder.emit("fusion", "shown")
    assert capsys.readouterr().err == "model.py:10 [fusion] shown\n"
    assert theirs.getvalue() == ""


def test_each_log_of_a_compile_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() / x.sum(0)).softmax(-1)

    written = ("bytecode", "cache", "compile_times", "fusion", "graph", "guards", "kernel_code")
    set_logs(*written, "aot_graphs", "loops", "schedule", "output_code")
    compiled = braze.compile(f, options={"cache_dir": tmp_path})
    compiled(torch.rand(3, 4))
    said = capsys.readouterr().err
    for name in shown_logs():
        assert f"[{name}]" in said, name
    assert "[cache] miss: " in said and "RETURN_VALUE" in said and "not fused: " in said
    braze.reset()
    compiled(torch.rand(3, 4))
    assert "[cache] hit: " in capsys.readouterr().err
