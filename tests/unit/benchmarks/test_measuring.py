"""Clocks, interleaving, requests and worker processes."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

import pytest
from benchmarks.clocks import measure, peak_memory_mib, processor_seconds
from benchmarks.command_line import DEMO_MODELS, parser, plan_of
from benchmarks.models import EIGHT, MODELS
from benchmarks.processes import Caches, empty_caches, run
from benchmarks.request import Request, Settings
from benchmarks.tasks import _start_model, _Worker, describe_failure
from benchmarks.timing import interleave

_BURN = "import time\nend = time.process_time() + 0.15\nwhile time.process_time() < end: pass\n"


def test_processor_time_counts_children_that_ended():
    before = processor_seconds()
    subprocess.run([sys.executable, "-c", _BURN], check=True)
    assert processor_seconds() - before > 0.1


def test_processor_time_counts_children_that_still_run():
    before = processor_seconds()
    code = _BURN + "print(flush=True)\ninput()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
        child.stdout.readline()
        assert processor_seconds() - before > 0.1
        child.communicate(b"\n")


def test_waiting_takes_wall_time_only():
    _, elapsed = measure(partial(time.sleep, 0.2))
    assert elapsed.wall_s > 0.19
    assert elapsed.processor_s < elapsed.wall_s / 2


def test_peak_memory_is_that_of_a_python_process_with_torch():
    assert 50 < peak_memory_mib() < 100_000


def test_each_function_has_a_turn_a_round_in_changing_order_and_begins_it_untimed():
    called: list[str] = []

    def slow(name: str) -> None:
        called.append(name)
        time.sleep(0.006)

    functions = {name: partial(slow, name) for name in "ab"}
    times = interleave(functions, lambda: ((), {}), "cpu", rounds=8)
    turns = called[-32:]
    assert turns[::2] == turns[1::2]
    rounds = {tuple(turns[i : i + 4 : 2]) for i in range(0, 32, 4)}
    assert rounds == {("a", "b"), ("b", "a")}
    assert [len(times[name]) for name in "ab"] == [8, 8]
    assert min(times["a"]) > 0.005


def test_short_calls_are_timed_in_groups():
    calls: list[None] = []
    interleave({"a": lambda: calls.append(None)}, lambda: ((), {}), "cpu", rounds=1)
    assert len(calls) > 100


def test_request_survives_json():
    settings = Settings(rounds=3, threads=2, torch_mode="reduce-overhead")
    request = Request("steady", ("eager", "braze"), settings, "bert", "bfloat16")
    assert Request.from_json(request.to_json()) == request


def test_failure_is_described_without_folders():
    error = ValueError("cannot read /home/someone/project/model.py\nsecond line")
    assert describe_failure(error) == "ValueError: cannot read model.py"


def test_every_cache_lies_in_the_folder():
    with empty_caches() as caches:
        environment = caches.environment()
        assert {"TORCHINDUCTOR_CACHE_DIR", "BRAZE_CACHE_DIR"} <= environment.keys()
        assert all(value.startswith(str(caches.folder)) for value in environment.values())
    assert not caches.folder.exists()


def test_worker_measures_in_a_fresh_process(tmp_path):
    phases: list[str] = []
    settings = Settings(size="tiny", rounds=2, threads=1)
    request = Request("start", ("eager",), settings, "resnet18", first_compile=True)
    result = run(request, Caches(tmp_path), phases.append)
    assert "error" not in result
    assert result["import"]["wall_s"] > 0
    assert result["compile"]["wall_s"] > 0
    assert result["call_ms"] > 0
    assert result["peak_memory_mib"] > 50
    assert phases[0] == "importing"


@pytest.mark.parametrize(("work", "calls"), [("backward", 1), ("step", 2)])
def test_a_compile_is_measured_until_nothing_is_left_to_compile(work, calls, monkeypatch):
    """The first training step makes the optimizer's state: the second is another program."""
    made = []

    def make_and_call(worker, system, case):
        made.append(system)
        return lambda *args, **kwargs: made.append("call")

    def measure_calls(function, device):
        function()
        raise _Measured

    monkeypatch.setattr("benchmarks.tasks._Worker.make_and_call", make_and_call)
    monkeypatch.setattr("benchmarks.tasks.measure", measure_calls)
    settings = Settings(size="tiny", threads=1, work=work)
    with pytest.raises(_Measured):
        _start_model(_Worker(Request("start", ("eager",), settings, "resnet18"), print), "eager")
    assert made == ["eager"] + ["call"] * (calls - 1)


class _Measured(Exception):
    """Ends a measurement behind the compiles."""


def test_worker_that_dies_is_an_error_with_its_last_words(tmp_path):
    result = run(Request("start", ("eager",), Settings(), "no such model"), Caches(tmp_path), print)
    assert result["error"].startswith("ValueError: no model 'no such model'; there are: ")


def test_worker_that_takes_too_long_is_ended(tmp_path):
    request = Request("start", ("eager",), Settings(), "resnet18")
    result = run(request, Caches(tmp_path), str, timeout_s=0.05)
    assert result["error"] == "stopped after 0 s"


def test_options_become_a_plan():
    chosen = parser("", ("float32",), "out").parse_args(["--quick", "--dtype", "bfloat16"])
    plan = plan_of(chosen, full=False)
    assert plan.models == ("resnet18", "bert", "llama")
    assert plan.dtypes == ("bfloat16",)
    assert plan.settings.rounds == 10


def test_the_demo_takes_few_models_and_the_comparison_all():
    chosen = parser("", ("float32",), "out", DEMO_MODELS).parse_args([])
    assert plan_of(chosen, full=False, usual=DEMO_MODELS).models == DEMO_MODELS
    assert len(DEMO_MODELS) == 3 and {*DEMO_MODELS} < {*EIGHT}
    assert plan_of(chosen, full=True).models == EIGHT
    named = parser("", ("float32",), "out").parse_args(["--models", "all"])
    assert {*plan_of(named, full=False, usual=DEMO_MODELS).models} == {*MODELS}


@pytest.mark.parametrize(
    ("option", "valid"), [("--models", "resnet18"), ("--dtype", "float32"), ("--systems", "braze")]
)
def test_unknown_name_lists_the_valid_ones(option, valid):
    chosen = parser("", ("float32",), "out").parse_args([option, "nonsense"])
    with pytest.raises(SystemExit, match=f"'nonsense'; there are: .*{valid}"):
        plan_of(chosen, full=False)
