"""The whole run: modules side by side in processes of their own, and one table of the results.

python -m tests.cpython.run [--jobs 2] [--part 0/1] [--json out.jsonl] [--write] [module ...]
python -m tests.cpython.run --read out.jsonl ... [--write [--parts 0 1 ...]]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cpython import known
from tests.cpython.modules import MODULES
from tests.cpython.worker import MethodReport, module_exists


def run_modules(modules: Sequence[str], part: str = "0/1", only: str = "") -> list[MethodReport]:
    """The reports of some modules, made by a process of its own."""
    there = [module for module in modules if module_exists(module)]
    if not there:
        return []
    command = [sys.executable, "-m", "tests.cpython.worker", *there, "--part", part]
    done = subprocess.run(
        [*command, "--only", only],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    if done.returncode:
        raise RuntimeError(f"the worker for {there} ended with status {done.returncode}")
    return read_reports(done.stdout)


def read_reports(text: str) -> list[MethodReport]:
    """Reports from lines of JSON."""
    return [MethodReport(**json.loads(line)) for line in text.splitlines()]


def main(arguments: list[str]) -> None:
    """Run modules, print a line for each, and the commonest reasons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--part", default="0/1", help="i/n: every n-th method, from the i-th")
    parser.add_argument("--json", type=Path, help="where to write the reports, one a line")
    parser.add_argument("--read", type=Path, nargs="+", help="show reports of former runs")
    parser.add_argument(
        "--parts", type=int, nargs="+", default=range(known.SPLIT), help="that the list is of"
    )
    parser.add_argument("--write", action="store_true", help="write the list of known failures")
    given = parser.parse_args(arguments)
    reports: list[MethodReport] = []
    if given.read:
        reports = [report for file in given.read for report in read_reports(file.read_text())]
        for module in sorted({report.module for report in reports}):
            print(line_of(module, [report for report in reports if report.module == module]))
    with ThreadPoolExecutor(given.jobs) as pool:
        modules = () if given.read else given.modules
        for module, found in zip(
            modules, pool.map(lambda m: run_modules([m], given.part), modules)
        ):
            reports += found
            print(line_of(module, found), flush=True)
    print(line_of("all", reports))
    for reason, count in reasons(reports).most_common(40):
        print(f"{count:5d} {reason}")
    if given.json:
        lines = [json.dumps(dataclasses.asdict(report)) + "\n" for report in reports]
        given.json.write_text("".join(lines))
    if given.write:
        known.write(reports, given.parts)


def line_of(name: str, reports: list[MethodReport]) -> str:
    """One line of the table."""
    how = Counter(map(known.verdict, reports))
    total = how["whole"] + how["breaks"] + how["fails"] + how["slow"]
    passed = total - how["fails"] - how["slow"]
    counted = [report for report in reports if report.plain == "pass"]
    return (
        f"{name:26} {total:5} pass {_percent(passed, total)} whole {_percent(how['whole'], total)}"
        f" graphs {sum(r.graphs for r in counted):5} breaks {sum(len(r.breaks) for r in counted):5}"
        f" bytecodes {sum(r.bytecodes for r in counted):8}"
        f" {sum(report.seconds for report in reports):6.1f} s"
    )


def _percent(part: int, whole: int) -> str:
    return f"{part:5} {100 * part / max(1, whole):5.1f} %"


def reasons(reports: list[MethodReport]) -> Counter[str]:
    """Why methods do not run whole, by count."""
    return Counter(
        known.reason(report)
        for report in reports
        if known.verdict(report) in ("breaks", "fails", "slow")
    )


if __name__ == "__main__":
    main(sys.argv[1:])
