"""Results, tables and pictures from made-up measurements."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from benchmarks.clocks import Elapsed
from benchmarks.command_line import row_of
from benchmarks.harness import Plan, measure_all
from benchmarks.plot import draw
from benchmarks.request import Settings
from benchmarks.results import (
    Measured,
    ModelResult,
    Overhead,
    Report,
    failures,
    mean_of,
    measured,
    to_json,
)
from benchmarks.table import demo_table, full_tables
from rich.console import Console

_ACCURACY = {
    "largest_error": 2e-6,
    "relative_error": 1e-6,
    "float64_ratio": 1.5,
    "float64_rms_ratio": 1.2,
    "right": True,
}


def _answer(call_ms, **changes):
    counts = {"graphs": 1, "breaks": 0, "ops": 9, "fallbacks": []}
    return {**counts, "call_ms": call_ms, "accuracy": _ACCURACY, **changes}


def _steady(braze):
    eager, peer = _answer([10.0, 20.0, 30.0]), _answer([5.0, 10.0, 15.0])
    return {"systems": {"eager": eager, "torch_compile": peer, "braze": braze}}


def _result(title, braze, cold_s=2.0):
    steady = _steady(braze)
    systems = {name: measured(steady, name) for name in steady["systems"]}
    cold = {"cold_compile": Elapsed(cold_s, cold_s + 1), "peak_memory_mib": 512.0}
    systems["braze"] = dataclasses.replace(systems["braze"], **cold)
    return ModelResult(title.lower(), title, "float32", systems)


def _report(*results, load=0.1):
    machine = {"cores": 2, "threads": 2, "architecture": "x86_64", "vector_instructions": "AVX512"}
    machine["load"] = load
    settings = dataclasses.asdict(Settings())
    overhead = (Overhead("one-line function", {"eager": 1.25, "braze": "ValueError: no"}),)
    first = {"torch_compile": Elapsed(9.0, 9.5), "braze": None}
    return Report("2024-02-29", machine, {"torch": "2.13.0"}, settings, results, first, overhead)


def _printed(renderable, width=140):
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue()


GOOD = _answer([4.0, 8.0, 12.0])
FAILED = {"error": "ValueError: no"}


def test_measured_pairs_the_rounds():
    found = measured(_steady(GOOD), "braze")
    assert found.median_ms == 8.0
    assert found.speedup == pytest.approx(2.5)
    assert found.ratio_to_torch_compile.median == pytest.approx(0.8)
    assert found.sound


def test_error_of_a_system_or_of_the_process_is_kept():
    assert measured(_steady(FAILED), "braze").error == "ValueError: no"
    assert measured({"error": "died"}, "braze") == Measured(error="died")


def test_mean_is_of_the_models_that_were_measured():
    results = [_result("A", GOOD, cold_s=1.0), _result("B", GOOD, cold_s=4.0), _result("C", FAILED)]
    speedup = mean_of(results, "braze", "speedup")
    assert (speedup.count, speedup.total) == (2, 3)
    assert speedup.value == pytest.approx(2.5)
    assert mean_of(results[:2], "braze", "cold_compile_wall_s").value == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (FAILED, "A, float32: ValueError: no"),
        (_answer([1.0] * 3, fallbacks=["no compiler"]), "A, float32: fell back, no compiler"),
        (
            _answer([1.0] * 3, accuracy={**_ACCURACY, "right": False}),
            "A, float32: wrong result, largest error against eager 2e-06, 1.5 times eager's own"
            " error against float64",
        ),
    ],
)
def test_what_goes_wrong_is_one_line_and_red_in_the_table(answer, line):
    report = _report(_result("A", answer))
    assert failures(report, "braze") == [line, "one-line function: ValueError: no"]
    assert f"Braze failed: {line}" in " ".join(_printed(demo_table(report), width=400).split())


def test_json_has_means_and_no_private_figures():
    document = json.loads(to_json(_report(_result("A", GOOD))))
    braze = document["models"][0]["systems"]["braze"]
    assert braze["call_ms"] == [4.0, 8.0, 12.0]
    assert braze["cold_compile"] == {"wall_s": 2.0, "processor_s": 3.0}
    assert document["geometric_means"]["float32"]["braze"]["speedup"]["value"] == pytest.approx(2.5)


def test_demo_table_shows_each_system_s_figures():
    lines = _printed(demo_table(_report(_result("A", GOOD)))).splitlines()
    row = next(line for line in lines if line.startswith(" A "))
    cells = "A 20.0 10.0 8.00 2.00× 2.50× – 2.0 1 / 0 1 / 0 2.0e-06 2.0e-06"
    assert row.split() == cells.split()


def test_demo_table_fits_120_columns():
    lines = _printed(demo_table(_report(_result("VisionTransformer", GOOD))), 120).splitlines()
    assert all("…" not in line for line in lines)


def test_busy_machine_is_named():
    quiet, busy = (_report(_result("A", GOOD), load=load) for load in (0.9, 1.1))
    assert "busy" not in _printed(demo_table(quiet))
    assert "The machine was busy when this began (load 1.1)" in _printed(demo_table(busy))


def test_mean_without_all_models_is_marked():
    printed = _printed(demo_table(_report(_result("A", GOOD), _result("B", FAILED))))
    row = next(line for line in printed.splitlines() if line.startswith(" geometric mean"))
    assert row.split() == ["geometric", "mean", "2.00×", "2.50×*", "–", "2.0"]


def test_full_tables_show_intervals_and_overhead():
    printed = _printed(full_tables(_report(_result("A", GOOD))))
    assert "0.400 [0.400, 0.400]" in printed
    assert "512" in printed
    overhead = next(line for line in printed.splitlines() if line.startswith(" one-line function"))
    assert overhead.split() == ["one-line", "function", "1.2", "failed"]


@pytest.mark.parametrize("results", [(GOOD,), (GOOD, FAILED), (FAILED,)])
def test_picture_is_drawn_whatever_failed(results, tmp_path):
    report = _report(*[_result(str(i), answer) for i, answer in enumerate(results)])
    draw(report, "float32", tmp_path / "folder" / "picture.png")
    assert (tmp_path / "folder" / "picture.png").read_bytes().startswith(b"\x89PNG")


class _Watcher:
    def __init__(self):
        self.total, self.done, self.failures = 0, 0, []

    def begin(self, total):
        self.total = total

    def phase(self, text):
        pass

    def advance(self, weight):
        self.done += weight

    def failed(self, what, log):
        self.failures.append(what)


def _fake_run(request, caches, on_phase, timeout_s=600.0):
    """A worker in which Braze takes the process down."""
    if request.task == "steady" and "braze" in request.systems:
        return {"error": "the process died of SIGSEGV", "log": "..."}
    if request.task == "steady":
        return {"systems": {name: _answer([1.0, 2.0]) for name in request.systems}}
    if request.task == "overhead":
        part = {"systems": {name: {"call_us": [1.0]} for name in request.systems}}
        return {"overhead": {"function": part}}
    seconds = {"wall_s": 1.0, "processor_s": 2.0}
    times = {"import": seconds, "compile": seconds, "peak_memory_mib": 1.0}
    return times | ({"first_compile": seconds} if request.first_compile else {})


def test_each_model_is_kept_as_it_is_measured(monkeypatch):
    monkeypatch.setattr("benchmarks.harness.run", _fake_run)
    kept = []
    plan = Plan(("resnet18", "bert"), ("float32",), Settings(threads=1), full=True, brief=True)
    report = measure_all(plan, _Watcher(), kept.append)
    assert [len(part.models) for part in kept] == [1, 2]
    assert kept[-1].models == report.models
    row = row_of(kept[0].models[0])
    assert row.startswith("ResNet-18 float32: eager 1.5 ms (1.000)")
    assert "torch_compile 1.5 ms (1.000), cold 1.0 s; braze failed, cold 1.0 s" in row


def test_no_cold_compile_finds_what_another_left(monkeypatch):
    """Both ways of torch.compile fill the same kind of cache."""
    folders = {}

    def run(request, caches, on_phase, timeout_s=600.0):
        if request.task == "start" and request.model is not None:
            folders.setdefault(request.systems[0], []).append(caches.folder)
        return _fake_run(request, caches, on_phase, timeout_s)

    monkeypatch.setattr("benchmarks.harness.run", run)
    systems = ("eager", "torch_compile", "torch_compile_autograd", "braze")
    measure_all(Plan(("resnet18",), ("float32",), Settings(), systems, True, True), _Watcher())
    cold, warm = folders["torch_compile_autograd"]
    assert cold == warm
    assert cold not in folders["torch_compile"]


def test_a_model_whose_time_is_up_is_left_out(monkeypatch):
    monkeypatch.setattr("benchmarks.harness.run", _fake_run)
    plan = Plan(("resnet18",), ("float32",), Settings(threads=1), limit_s=0.0)
    (result,) = measure_all(plan, _Watcher()).models
    for found in result.systems.values():
        assert found.error.startswith("left out: the model's time was up before its")


@pytest.mark.parametrize("full", [False, True])
def test_crash_of_braze_leaves_the_others_their_figures(monkeypatch, full):
    monkeypatch.setattr("benchmarks.harness.run", _fake_run)
    watcher = _Watcher()
    plan = Plan(("resnet18", "bert"), ("float32",), Settings(threads=1), full=full)
    report = measure_all(plan, watcher)
    systems = report.models[0].systems
    assert systems["braze"].error == "the process died of SIGSEGV"
    assert systems["torch_compile"].time_ratio.median == 1.0
    assert systems["torch_compile"].cold_compile == Elapsed(1.0, 2.0)
    assert report.first_compile["braze"] == Elapsed(1.0, 2.0)
    assert len(watcher.failures) == 2
    assert bool(systems["braze"].warm_start) == bool(report.overhead) == full
