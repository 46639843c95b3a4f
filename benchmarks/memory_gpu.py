"""Memory of models on a GPU: eager and Braze, each in a process of its own.

    python -m benchmarks.memory_gpu [--only resnet,bert] [--systems eager,braze] [--processes 8]

What PyTorch's allocator held at most, in MiB: for tensors (allocated) and of the device (reserved:
what lies idle between tensors and what recordings hold, too), in the first calls, compiles and
recordings included, and in later ones, behind an `empty_cache()`. Other processes change none of
it, so several run at once. The table and a JSON file go to benchmarks/results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, final

import torch

from benchmarks.intervals import geometric_mean
from benchmarks.machine import describe_machine, describe_versions, today
from benchmarks.models_gpu import COLUMNS, RESULTS
from benchmarks.models_gpu_cases import CASES
from benchmarks.systems import EAGER, SYSTEMS

_MIB = 1 << 20
_FIRST_CALLS, _LATER_CALLS = 8, 10
_PROCESS_S = 240.0
# The goals, over eager's.
GOALS: Mapping[str, float] = {"allocated": 1.0, "reserved": 1.05}


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Peaks:
    """Of some calls, in MiB."""

    allocated: float
    reserved: float


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """One column of one case. at_rest: MiB of model, inputs and gradients that wait, before any
    call. error: why there are no figures."""

    at_rest: float = 0.0
    first: Peaks | None = None
    later: Peaks | None = None
    error: str | None = None


# Of a case: its columns' figures.
Row: TypeAlias = Mapping[str, Memory]


def measure(case_name: str, column: str) -> Memory:
    """In this process, which should have done nothing before."""
    case = next(case for case in CASES if case.name == case_name)
    model, make_inputs, loss = case.build()
    name, mode = COLUMNS[column]
    system = SYSTEMS[name]
    call = case.compiled_call(lambda t: system.compile(t, mode), model, make_inputs, loss)
    at_rest = torch.cuda.memory_allocated() / _MIB
    first = _peaks(call, _FIRST_CALLS)
    system.settle()
    return Memory(at_rest, first, _peaks(call, _LATER_CALLS))


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table, write both files; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="parts of names of cases, with commas")
    parser.add_argument("--systems", default="eager,braze,braze-ro", help="columns, with commas")
    parser.add_argument("--processes", type=int, default=8, help="at once")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=2, metavar=("CASE", "COLUMN"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("There is no CUDA device.", file=sys.stderr)
        return 1
    if chosen.one:
        print(json.dumps(dataclasses.asdict(measure(*chosen.one))))
        return 0
    columns = [column for column in COLUMNS if column in chosen.systems.split(",")]
    wanted = [part for part in chosen.only.split(",") if part]
    cases = [c.name for c in CASES if not wanted or any(part in c.name for part in wanted)]
    with ThreadPoolExecutor(chosen.processes) as threads:
        jobs = {
            case: {column: threads.submit(_in_a_process, case, column) for column in columns}
            for case in cases
        }
        rows = {case: {c: job.result() for c, job in row.items()} for case, row in jobs.items()}
    write(rows, columns, chosen.out)
    print((chosen.out / "memory_gpu.md").read_text())
    return int(any(found.error for row in rows.values() for found in row.values()))


def write(rows: Mapping[str, Row], columns: Sequence[str], out: Path) -> None:
    """Both files."""
    out.mkdir(parents=True, exist_ok=True)
    versions, machine = describe_versions(), describe_machine("cuda", None)
    report = {
        "date": today(),
        "versions": versions,
        "machine": machine,
        "cases": {
            case: {column: dataclasses.asdict(found) for column, found in row.items()}
            for case, row in rows.items()
        },
    }
    (out / "memory_gpu.json").write_text(json.dumps(report, indent=1) + "\n")
    of = ", ".join(f"{name} {version}" for name, version in versions.items())
    head = [
        "# Memory of models on a GPU",
        "",
        f"{today()}, {machine['device']}, {of}. MiB at most, of a fresh process: in the first calls"
        " / in later ones, behind",
        "`empty_cache()`; in brackets over eager's. Goals: allocated 1.00, reserved 1.05.",
        "",
    ]
    others = [column for column in columns if column != EAGER]
    lines = [*head, *_table(rows, columns), "", *_summary(rows, others)]
    (out / "memory_gpu.md").write_text("\n".join(lines) + "\n")


# --- private ---------------------------------------------------------------------------------


def _peaks(call: Callable[[], object], count: int) -> Peaks:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return Peaks(*[bytes_ / _MIB for bytes_ in held])


def _in_a_process(case: str, column: str) -> Memory:
    command = [sys.executable, "-m", "benchmarks.memory_gpu", "--one", case, column]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROCESS_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Memory(error=f"not done after {_PROCESS_S:.0f} s")
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return Memory(error=(done.stderr.strip().splitlines() or ["it died"])[-1][:200])
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return Memory(answer["at_rest"], Peaks(**answer["first"]), Peaks(**answer["later"]))


def _table(rows: Mapping[str, Row], columns: Sequence[str]) -> list[str]:
    titles = [f"{column}: {kind}" for kind in GOALS for column in columns]
    lines = ["| case | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for case, row in rows.items():
        cells = [_cell(row, column, kind) for kind in GOALS for column in columns]
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return lines


def _cell(row: Row, column: str, kind: str) -> str:
    found, eager = row[column], row.get(EAGER)
    if found.first is None or found.later is None:
        return found.error or "-"
    peaks = [getattr(peak, kind) for peak in (found.first, found.later)]
    text = " / ".join(f"{peak:.0f}" for peak in peaks)
    if column == EAGER or eager is None or eager.first is None or eager.later is None:
        return text
    own = [getattr(peak, kind) for peak in (eager.first, eager.later)]
    ratios = " / ".join(f"{mine / theirs:.2f}" for mine, theirs in zip(peaks, own, strict=True))
    return f"{text} ({ratios})"


def _summary(rows: Mapping[str, Row], columns: Sequence[str]) -> list[str]:
    """Of each column, its mean over eager's, and which cases are above a goal."""
    lines = []
    for column in columns:
        for kind, goal in GOALS.items():
            ratios = {
                case: max(
                    getattr(mine, kind) / getattr(theirs, kind)
                    for mine, theirs in (
                        (row[column].first, row[EAGER].first),
                        (row[column].later, row[EAGER].later),
                    )
                )
                for case, row in rows.items()
                if EAGER in row and row[column].later and row[EAGER].later
            }
            if not ratios:
                continue
            above = [f"{case} {ratio:.3f}" for case, ratio in ratios.items() if ratio > goal]
            mean = geometric_mean(ratios.values())
            lines.append(
                f"{column}, {kind}, the larger of both ratios: {mean:.2f} of eager's;"
                f" above {goal:.2f}: {', '.join(above) or 'none'}.  "
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
