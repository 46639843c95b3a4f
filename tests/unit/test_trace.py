"""The recorder: stages, counters, breaks; and the journal that keeps what it found."""

from __future__ import annotations

import gc
import threading

import pytest

from braze import trace
from braze.compile_records import BreakNote, CompileRecord
from braze.report.logs import set_logs
from braze.trace import ARTEFACTS, CompileRecorder, Journal, enabled


def finished(journal: Journal, name: str = "f") -> CompileRecord:
    return CompileRecorder(journal, name, "model.py:1").finish()


class Clock:
    """In place of the module `time`: moves where a test moves it."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    time = perf_counter


def test_stages_are_timed_in_order_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(trace, "time", clock)
    recorder = CompileRecorder(Journal(), "f", "model.py:1")
    for stage, seconds in (("capture", 2.0), ("lower", 1.0), ("capture", 4.0)):
        with recorder.stage(stage):
            clock.now += seconds
        clock.now += 8.0
    record = recorder.finish()
    assert record.stages == (("capture", 6.0), ("lower", 1.0))
    assert record.seconds == 31.0


def test_the_innermost_failed_stage_is_known() -> None:
    recorder = CompileRecorder(Journal(), "f", "model.py:1")
    with pytest.raises(KeyError), recorder.stage("codegen"), recorder.stage("build"):
        raise KeyError
    assert recorder.failed_stage == "build"
    assert recorder.finish("failed").outcome == "failed"


def test_counters_from_several_threads() -> None:
    recorder = CompileRecorder(Journal(), "f", "model.py:1")
    threads = [
        threading.Thread(target=lambda: [recorder.count("kernels") for _ in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.finish().counters == {"kernels": 2000}


def test_the_record_holds_what_was_noted() -> None:
    journal = Journal(detailed=True)
    recorder = CompileRecorder(journal, "f", "model.py:1")
    note = BreakNote("explicit", "asked for", "remove it", "model.py:3")
    recorder.note_ops(["aten.add", "aten.mul"])
    recorder.note_extern_ops(["aten.mm"])
    recorder.note_guards(["L['x'] is 3"])
    recorder.note_break(note)
    recorder.note_fallback("needs gradients")
    recorder.note_fallback("needs gradients")
    record = recorder.finish()
    assert record.ops == ("aten.add", "aten.mul")
    assert record.extern_ops == ("aten.mm",)
    assert record.guards == ("L['x'] is 3",)
    assert record.graph_break == note
    assert record.fallbacks == ("needs gradients",)
    assert journal.records() == (record,)


def test_guards_are_printed_only_where_someone_looks() -> None:
    def dear() -> object:
        raise AssertionError("printed")
        yield

    recorder = CompileRecorder(Journal(), "f", "model.py:1")
    recorder.note_guards(dear())  # type: ignore[arg-type]
    assert recorder.finish().guards == ()


def test_a_journal_keeps_a_bounded_number_of_records() -> None:
    journal = Journal(length=2)
    records = [finished(journal, name) for name in "abc"]
    assert journal.records() == tuple(records[1:])
    journal.note_fallback("x")
    journal.note_fallback("x")
    assert journal.fallbacks() == ("x",)
    journal.clear()
    assert journal.records() == () == journal.fallbacks()


def test_log_lines_are_built_only_where_wanted(caplog: pytest.LogCaptureFixture) -> None:
    recorder = CompileRecorder(Journal(), "f", "model.py:1")

    def dear() -> str:
        raise AssertionError("built")

    recorder.emit("output_code", dear)
    with caplog.at_level("INFO", logger="braze.fusion"):
        recorder.emit("fusion", lambda: "two loops became one", origin="model.py:9")
        recorder.emit("output_code", dear)
    (line,) = caplog.records
    assert (line.name, line.getMessage()) == ("braze.fusion", "two loops became one")
    assert line.origin == "model.py:9"  # type: ignore[attr-defined]


def test_unknown_artefacts_are_bugs() -> None:
    set_logs()
    assert not any(enabled(name) for name in ARTEFACTS)
    with pytest.raises(KeyError):
        enabled("no_such_log")


def test_a_block_left_suspended_writes_no_record() -> None:
    journal = Journal()
    block = CompileRecorder(journal, "f", "model.py:1").finishing("graph")
    block.__enter__()
    del block  # as where an interrupt comes between `__enter__` and the block
    gc.collect()
    assert not journal.records()
    with CompileRecorder(journal, "g", "model.py:1").finishing("graph"):
        pass
    with pytest.raises(ValueError), CompileRecorder(journal, "h", "model.py:1").finishing("graph"):
        raise ValueError
    assert [(r.function, r.outcome) for r in journal.records()] == [("g", "graph"), ("h", "failed")]


def test_names_of_operators_are_kept_once() -> None:
    recorder = CompileRecorder(Journal(), "f", "model.py:1")
    recorder.note_ops("".join(["aten", ".add"]) for _ in range(3))
    recorder.note_extern_ops("".join(["aten", ".add"]) for _ in range(2))
    record = recorder.finish()
    assert len({id(name) for name in (*record.ops, *record.extern_ops)}) == 1
