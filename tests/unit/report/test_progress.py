"""The line on a terminal that says what is compiled while that takes long."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

import braze
from braze.compile_records import LISTENERS, CompileEvent
from braze.report.progress import ProgressLine
from braze.trace import CompileRecorder, Journal


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _compile_slowly(line: ProgressLine, name: str, seconds: float) -> None:
    line(CompileEvent("begin", name, "some/model.py:12"))
    time.sleep(seconds)
    record = CompileRecorder(Journal(), name, "some/model.py:12").finish()
    line(CompileEvent("end", name, "some/model.py:12", record))


def _writers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "braze progress"]


def _wait_for_writers_to_end() -> None:
    until = time.monotonic() + 5
    while _writers() and time.monotonic() < until:
        time.sleep(0.01)
    assert not _writers()


def test_a_long_compile_has_a_line_that_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    _compile_slowly(ProgressLine(after=0.02), "GPT.forward", 0.2)
    text = terminal.getvalue()
    assert "\r\x1b[Kbraze: compiling GPT.forward (model.py:12), 0 s" in text
    assert text.endswith("\r\x1b[K") and "\n" not in text
    _wait_for_writers_to_end()


def test_a_short_compile_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    _compile_slowly(ProgressLine(after=0.3), "short", 0.0)
    _wait_for_writers_to_end()
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("off", ("no terminal", "option"))
def test_there_is_no_line_and_no_thread(monkeypatch: pytest.MonkeyPatch, off: str) -> None:
    terminal = io.StringIO() if off == "no terminal" else _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    line = ProgressLine(after=0.01)
    with braze.config.patch(progress=off != "option"):
        line(CompileEvent("begin", "f", "model.py:1"))
        assert not _writers()
        time.sleep(0.05)
        line(CompileEvent("end", "f", "model.py:1", CompileRecorder(Journal(), "f", "").finish()))
    assert terminal.getvalue() == ""


def test_real_compiles_are_shown_by_their_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    end = LISTENERS.add(ProgressLine(after=0.001))
    try:
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Softmax(-1))
        braze.compile(model)(torch.ones(2, 3))
    finally:
        end()
    assert "braze: compiling Sequential.forward (container.py:" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    _wait_for_writers_to_end()


_SCRIPT = """
import time, torch, braze
braze.on_event(lambda event: time.sleep(1.3) if event.kind == "begin" else None)
braze.compile(lambda x: x.sin())(torch.ones(3))
"""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals")
def test_a_process_on_a_terminal_shows_it_and_one_without_does_not() -> None:
    ours, theirs = os.openpty()
    subprocess.run([sys.executable, "-c", _SCRIPT], stderr=theirs, check=True)
    os.close(theirs)
    said = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "braze: compiling <lambda> (<string>:4), 1 s" in said, said
