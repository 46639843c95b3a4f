"""Models of common size on a GPU: eager, torch.compile and Braze, each with and without recording.

    python -m benchmarks.models_gpu [--suite unseen] [--only resnet,bert] [--systems eager,braze]
                                    [--rounds 15] [--seconds 460] [--limit 60] [--fill 6]

Of the suite `unseen` no case is looked at while Braze is tuned (`unseen_gpu_cases.py`).

Each case has a process of its own, with all systems in it: behind another model of the same library
torch.compile compiles for changing sizes. First each system is compiled and called until it is warm
(what its first seven calls take beyond the fastest of them is timed: compiles and recordings, in
whichever call they come), then rounds follow, in an order drawn anew each time. A column that is
not warm after --limit seconds is given up; when --seconds are over no other case begins.

Each case has caches of its own, empty when the first of its systems compiles; with recording, a
system finds there what it built without. With --fill they are filled before, by as many processes
at once; first calls are then timed there, so that they are of compiles, beside each other. What
compiles longest comes last. The table and a JSON file with date, versions and card go to
benchmarks/results, rewritten after each case. Each column has eager's weights and inputs; where its
result lies further from eager's than half precision explains, that is said.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, final

import torch
from torch import nn

from benchmarks.intervals import geometric_mean, median, paired_ratio
from benchmarks.machine import describe_machine, describe_versions, today
from benchmarks.models import SEED
from benchmarks.models_gpu_cases import CASES, GpuCase
from benchmarks.processes import Caches, children, empty_caches, end
from benchmarks.systems import BRAZE, EAGER, SYSTEMS, TORCH_COMPILE
from benchmarks.timing import turns
from benchmarks.unseen_gpu_cases import UNSEEN

RESULTS = Path(__file__).with_name("results")
_RECORDING = "reduce-overhead"
_WARM_CALLS = 6
_SAMPLE_S = 0.03
_FILL_S = 200.0  # of one column, when caches are filled

# Name of a column -> the system and its mode; what compiles longest last.
COLUMNS: Mapping[str, tuple[str, str | None]] = {
    "eager": (EAGER, None),
    "braze": (BRAZE, None),
    "braze-ro": (BRAZE, _RECORDING),
    "tc": (TORCH_COMPILE, None),
    "tc-ro": (TORCH_COMPILE, _RECORDING),
}
SUITES: Mapping[str, tuple[GpuCase, ...]] = {"models": CASES, "unseen": UNSEEN}
_FAR = 0.05  # relative, of results: bfloat16 models lie some 0.01 from each other
# A column of Braze -> the one that it is to beat.
RIVALS: Mapping[str, str] = {"braze": "tc", "braze-ro": "tc-ro"}


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """One column of one case. call_ms: one a round. cold_s: what the first seven calls took beyond
    as many of the fastest of them. slowest_ms: of single calls after the third. allocated_mib,
    reserved_mib: peaks above what was there before. difference: of the last result to eager's, as a
    share of eager's norm."""

    call_ms: tuple[float, ...] = ()
    median_ms: float | None = None
    speedup: float | None = None
    cold_s: float | None = None
    slowest_ms: float | None = None
    allocated_mib: float | None = None
    reserved_mib: float | None = None
    difference: float | None = None
    fallbacks: tuple[str, ...] = ()
    error: str | None = None


# Of a case: its columns' figures.
Row: TypeAlias = Mapping[str, Figures]


class TooLong(BaseException):
    """A column is not warm in time. No Exception: compilers catch those."""


def measure_case(
    case: GpuCase, columns: Sequence[str], rounds: int, limit: float = math.inf
) -> dict[str, Figures]:
    """Every column's figures. One that fails is part of the answer. rounds: 0 for the first calls
    alone. limit: seconds that a column may take to be warm."""
    model, make_inputs, loss = case.build()
    calls: dict[str, Callable[[], object]] = {}
    figures: dict[str, Figures] = {}
    for column in columns:
        others = children()
        try:
            with _limited(limit):
                calls[column], figures[column] = _warmed(column, model, make_inputs, loss, case)
        except TooLong:  # what still compiles would slow the others down
            end(children() - others)
            figures[column] = Figures(error=f"not warm after {limit:.0f} s")
        except Exception as error:
            traceback.print_exc()
            figures[column] = Figures(error=f"{type(error).__name__}: {error}"[:200])
    if not rounds:
        return figures
    results = {column: _tensors_of(call()) for column, call in calls.items()}
    for column, tensors in results.items():
        far = _difference(tensors, results["eager"]) if "eager" in results else None
        figures[column] = dataclasses.replace(figures[column], difference=far)
    del results
    times: dict[str, list[float]] = {column: [] for column in calls}
    counts = {column: _calls_a_sample(call) for column, call in calls.items()}
    for column in turns(calls, rounds, seed=0):
        times[column].append(_seconds(calls[column], counts[column]) * 1e3)
    for column, ms in times.items():
        speedup = None
        if "eager" in times:
            speedup = 1 / paired_ratio(ms, times["eager"]).median
        figures[column] = dataclasses.replace(
            figures[column], call_ms=tuple(ms), median_ms=median(ms), speedup=speedup
        )
    return figures


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table, write both files; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", default="models", choices=sorted(SUITES))
    parser.add_argument("--only", default="", help="parts of names of cases, with commas")
    parser.add_argument("--systems", default=",".join(COLUMNS), help="columns, with commas")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--limit", type=float, default=math.inf)
    parser.add_argument("--fill", type=int, default=0, help="processes that fill the caches before")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", metavar="CASE", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("There is no CUDA device.", file=sys.stderr)
        return 1
    columns = [column for column in COLUMNS if column in chosen.systems.split(",")]
    if chosen.one:
        (case,) = [case for case in SUITES[chosen.suite] if case.name == chosen.one]
        row = measure_case(case, columns, chosen.rounds, chosen.limit)
        print(json.dumps({column: dataclasses.asdict(figures) for column, figures in row.items()}))
        return 0
    wanted = [part for part in chosen.only.split(",") if part]
    cases = SUITES[chosen.suite]
    names = [c.name for c in cases if not wanted or any(part in c.name for part in wanted)]
    with empty_caches() as every:
        caches = {name: Caches(every.folder / str(n)) for n, name in enumerate(names)}
        found = _measured(caches, columns, chosen)
    print((chosen.out / f"{chosen.suite}_gpu.md").read_text())
    return int(any(f.error for row in found.values() for f in row.values()))


def write(
    rows: Mapping[str, Row],
    columns: Sequence[str],
    folder: Path,
    fill: int = 0,
    suite: str = "models",
) -> None:
    """Both files. fill: how many processes compiled at once."""
    folder.mkdir(parents=True, exist_ok=True)
    machine, versions, date = describe_machine("cuda"), describe_versions(), today()
    colds = f", with {fill} processes compiling at once" if fill else ""
    head = [
        "# Models on a GPU",
        "",
        f"{date}; {machine['device']}; " + ", ".join(f"{k} {v}" for k, v in versions.items() if v),
        "",
        "Milliseconds a call (median), speedup over eager (median of paired rounds), seconds that "
        f"the first seven calls took beyond as many of the fastest{colds}, peak of reserved memory "
        "in MiB. Each case in a process of its own, with caches of its own, empty when the first "
        "column of a compiler begins: the second (`-ro`) finds there what the first built. Single "
        "calls are in the JSON file.",
        "",
        f"| case | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    lines = [_row(name, row, columns) for name, row in rows.items()]
    means = ["| geometric mean of speedups"]
    for column in columns:
        every = [row[column].speedup for row in rows.values() if row[column].speedup]
        means.append(f"{geometric_mean(every) or 0:.2f}x")  # type: ignore[arg-type]
    rivals = [_against(rows, ours, theirs) for ours, theirs in RIVALS.items() if ours in columns]
    notes = [*filter(None, rivals), *_fallbacks(rows), *_far_apart(rows)]
    text = "\n".join([*head, *lines, " | ".join(means) + " |", "", *notes, ""])
    (folder / f"{suite}_gpu.md").write_text(text)
    cases = {
        name: {column: dataclasses.asdict(figures) for column, figures in row.items()}
        for name, row in rows.items()
    }
    report = {"date": date, "machine": machine, "versions": versions, "cases": cases}
    (folder / f"{suite}_gpu.json").write_text(json.dumps(report, indent=1))


# --- private ---------------------------------------------------------------------------------


def _measured(
    caches: Mapping[str, Caches], columns: Sequence[str], chosen: argparse.Namespace
) -> dict[str, Row]:
    """The cases that these caches are for; files are written behind each."""
    until = time.monotonic() + chosen.seconds
    filled: dict[str, Row] = {}
    if chosen.fill:

        def fill(name: str) -> Row:
            return _in_a_process(chosen.suite, name, columns, 0, _FILL_S, caches[name])

        with ThreadPoolExecutor(chosen.fill) as threads:
            order = [*caches][::-1]  # what compiles longest first
            filled = dict(zip(order, threads.map(fill, order), strict=True))
        print(f"the caches are filled, {until - time.monotonic():.0f} s left", flush=True)
    found: dict[str, Row] = {}
    for name, own in caches.items():
        if time.monotonic() > until:
            print(f"the time is up before {name}", flush=True)
            continue
        row = _in_a_process(chosen.suite, name, columns, chosen.rounds, chosen.limit, own)
        found[name] = _with_first_calls(row, filled.get(name, {}))
        print(_row(name, found[name], columns), flush=True)
        write(found, columns, chosen.out, chosen.fill, chosen.suite)
    return found


def _in_a_process(
    suite: str, case: str, columns: Sequence[str], rounds: int, limit: float, caches: Caches
) -> Row:
    """`measure_case` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.models_gpu", "--suite", suite, "--one", case]
    command += ["--systems", ",".join(columns), "--rounds", str(rounds), "--limit", str(limit)]
    own = {**os.environ, **caches.environment()}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=own)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        error = (done.stderr.strip().splitlines() or ["it died"])[-1][:200]
        return dict.fromkeys(columns, Figures(error=error))
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {
        column: Figures(
            **{
                **row,
                "call_ms": tuple(row["call_ms"]),
                "fallbacks": tuple(row["fallbacks"]),
            }
        )
        for column, row in answer.items()
    }


def _with_first_calls(row: Row, filled: Row) -> Row:
    """The figures, the first calls' seconds being those of the process that filled the caches."""
    firsts = {column: figures.cold_s for column, figures in filled.items() if figures.cold_s}
    return {
        column: dataclasses.replace(figures, cold_s=firsts.get(column, figures.cold_s))
        for column, figures in row.items()
    }


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise TooLong inside of the block when the time is up."""

    def stop(*_: object) -> NoReturn:
        raise TooLong

    if seconds == math.inf:
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _warmed(
    column: str, model: nn.Module, make_inputs: Any, loss: Any, case: GpuCase
) -> tuple[Callable[[], object], Figures]:
    system, mode = COLUMNS[column]
    own = copy.deepcopy(model)
    SYSTEMS[system].start_counting()

    def compile_one(target: Any) -> Any:
        return SYSTEMS[system].compile(target, mode)

    torch.manual_seed(SEED)
    call = case.compiled_call(compile_one, own, make_inputs, loss)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    first = _seconds(call, 1)
    single = [_seconds(call, 1) * 1e3 for _ in range(_WARM_CALLS)]
    cold = first + sum(single) / 1e3 - len([first, *single]) * min(single) / 1e3
    SYSTEMS[system].settle()
    return call, Figures(
        cold_s=cold,
        slowest_ms=max(single[2:]),
        allocated_mib=(torch.cuda.max_memory_allocated() - allocated) / 2**20,
        reserved_mib=(torch.cuda.max_memory_reserved() - reserved) / 2**20,
        fallbacks=SYSTEMS[system].count_graphs().fallbacks,
    )


def _tensors_of(result: object) -> list[torch.Tensor]:
    """Copies of a result's floating tensors, in order."""
    if isinstance(result, torch.Tensor):
        return [result.detach().float().clone()] if result.is_floating_point() else []
    if isinstance(result, Mapping):
        result = list(result.values())
    found = result if isinstance(result, (list, tuple)) else ()
    return [tensor for item in found for tensor in _tensors_of(item)]


def _difference(given: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> float:
    """The largest distance of two results, as a share of the right one's norm; infinite where
    they have other shapes."""
    if [x.shape for x in given] != [x.shape for x in right]:
        return math.inf
    parts = [
        ((x - y).norm() / y.norm().clamp_min(1e-6)).item()
        for x, y in zip(given, right, strict=True)
    ]
    return max((math.inf if math.isnan(part) else part for part in parts), default=0.0)


def _calls_a_sample(call: Callable[[], object]) -> int:
    """By the fastest of three: one that compiles once more would make samples of single calls,
    which show how long a result takes, not how many come."""
    return max(1, round(_SAMPLE_S / min(_seconds(call, 1) for _ in range(3))))


def _seconds(call: Callable[[], object], count: int) -> float:
    """Seconds a call, until the device is done."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def _row(name: str, row: Row, columns: Sequence[str]) -> str:
    cells = [f"| {name}"]
    for column in columns:
        figures = row[column]
        if figures.median_ms is None:
            cells.append(f"failed: {(figures.error or '')[:40]}")
            continue
        speedup = "" if column == "eager" else f" {figures.speedup or 0:.2f}x"
        note = " (!)" if figures.fallbacks else ""
        cells.append(
            f"{figures.median_ms:.2f}{speedup}, {figures.cold_s:.1f} s, "
            f"{figures.reserved_mib:.0f}{note}"
        )
    return " | ".join(cells) + " |"


def _fallbacks(rows: Mapping[str, Row]) -> list[str]:
    """What each "(!)" of the table stands for."""
    return [
        f"(!) {name}, {column}: {reason}"
        for name, row in rows.items()
        for column, figures in row.items()
        for reason in figures.fallbacks
    ]


def _far_apart(rows: Mapping[str, Row]) -> list[str]:
    """The columns whose results are not eager's."""
    return [
        f"{name}, {column}: the result lies {figures.difference:.2g} of its norm from eager's"
        for name, row in rows.items()
        for column, figures in row.items()
        if figures.difference is not None and figures.difference > _FAR
    ]


def _against(found: Mapping[str, Row], ours: str, theirs: str) -> str:
    """The geometric mean of times, ours over theirs, where both were measured."""
    pairs = [(row.get(ours, Figures()), row.get(theirs, Figures())) for row in found.values()]
    ratios = [a.median_ms / b.median_ms for a, b in pairs if a.median_ms and b.median_ms]
    mean = geometric_mean(ratios)
    return f"{ours}: {mean:.2f} of {theirs}'s time over {len(ratios)} cases." if mean else ""


if __name__ == "__main__":
    sys.exit(main())
