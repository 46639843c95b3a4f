"""The explanation: sums over compile records, and how it prints."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import braze
from braze.report.explain import Explanation, summarise
from braze.trace import BreakNote, CompileRecorder, Journal

NOTE = BreakNote("explicit", "the program asks for a break", "remove it", "model.py:12")


@pytest.fixture
def explanation() -> Explanation:
    journal = Journal(detailed=True)
    first = CompileRecorder(journal, "forward", "model.py:10")
    with first.stage("capture"):
        first.note_ops(["aten.add", "aten.add", "aten.mm"])
    first.note_extern_ops(["aten.mm"])
    first.note_guards([f"L['x{i}'] is {i}" for i in range(30)])
    first.note_break(NOTE)
    first.count("kernels", 2)
    first.finish()
    second = CompileRecorder(journal, "forward", "model.py:10")
    with second.stage("capture"), second.stage("lower"):
        second.note_ops(["aten.relu"])
    second.count("kernels")
    second.finish()
    CompileRecorder(journal, "forward", "model.py:10").finish()  # a frame without any operator
    return summarise("Model.forward", journal, result=7)


def test_sums(explanation: Explanation) -> None:
    assert explanation.graph_count == 2
    assert explanation.break_count == 1
    assert explanation.break_reasons == (NOTE,)
    assert explanation.op_count == 4
    assert explanation.ops_per_graph == (
        Counter({"aten.add": 2, "aten.mm": 1}),
        Counter({"aten.relu": 1}),
    )
    assert len(explanation.guards) == 30
    assert set(explanation.stage_seconds) == {"capture", "lower"}
    assert explanation.counters == {"kernels": 3}
    assert explanation.extern_ops == ("aten.mm",)
    assert explanation.fallbacks == ()
    assert explanation.result == 7


def test_text(explanation: Explanation) -> None:
    text = str(explanation)
    assert text.startswith("Model.forward: 2 graphs, 1 break, 4 operators, compiled in ")
    assert "Break 1: model.py:12 the program asks for a break [explicit]\n  remove it" in text
    assert "aten.mm" in text and "ATen" in text
    assert "30 guards" in text and "... 10 more" in text
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert repr(explanation) == text


def test_an_empty_explanation_prints() -> None:
    text = str(summarise("f", Journal(), result=None))
    assert text.startswith("f: 0 graphs, 0 breaks, 0 operators")


def test_fallbacks_of_compiles_and_calls() -> None:
    journal = Journal()
    recorder = CompileRecorder(journal, "f", "model.py:1")
    recorder.note_fallback("needs gradients")
    recorder.finish("failed")
    journal.note_fallback("a foreign mode is active")
    fallbacks = summarise("f", journal, None).fallbacks
    assert fallbacks == ("needs gradients", "f was left to eager", "a foreign mode is active")


def test_it_shows_on_the_terminal(
    explanation: Explanation, capsys: pytest.CaptureFixture[str]
) -> None:
    explanation.show()
    assert "2 graphs" in capsys.readouterr().out


def test_explain_shows_passes_and_kernels() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2

    found = braze.explain(function)(torch.randn(6, 8))
    (kernel,) = found.kernels
    line = function.__code__.co_firstlineno + 1
    assert kernel.name == "fused_relu_mul_0" and kernel.bytes == 2 * 4 * 48
    assert kernel.places == (f"{__file__}:{line}",)
    names = [note.name for note in found.passes]
    assert names.index("remove_dead_nodes") < names.index("inline")
    text = str(found)
    assert "(unchanged)" in text and f"test_explain.py:{line}" in text and "384" in text
