"""The whole run: modules side by side in processes of their own, and one table of the results.

python -m tests.cpython.run [--jobs 2] [--json out.jsonl] test_list test_dict ...
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cpython.worker import MethodReport


def run_module(module: str, part: str = "0/1", only: str = "") -> list[MethodReport]:
    """The reports of one module, made by a process of its own."""
    command = [sys.executable, "-m", "tests.cpython.worker", module, "--part", part]
    done = subprocess.run([*command, "--only", only], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"the worker for {module} ended with status {done.returncode}")
    return [MethodReport(**json.loads(line)) for line in done.stdout.splitlines()]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    reports: list[MethodReport] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for module, found in zip(given.modules, pool.map(run_module, given.modules)):
            reports += found
            print(line_of(module, found), flush=True)
    print(line_of("all", reports))
    for (code, reason), count in break_counts(reports).most_common(60):
        print(f"{count:5d} {code}: {reason}")
    if given.json:
        import dataclasses

        given.json.write_text("".join(json.dumps(dataclasses.asdict(r)) + "\n" for r in reports))


def line_of(name: str, reports: list[MethodReport]) -> str:
    plain = [r for r in reports if r.plain == "pass"]
    passed = [r for r in plain if r.outcome == "pass"]
    whole = sum(r.whole for r in plain)
    total = max(1, len(plain))
    return (
        f"{name:24} methods {len(reports):4} plain {len(plain):4} pass {len(passed):4} "
        f"{100 * len(passed) / total:5.1f}% whole {whole:4} {100 * whole / total:5.1f}% "
        f"graphs {sum(r.graphs for r in plain):5} breaks {sum(len(r.breaks) for r in plain):5} "
        f"bytecodes {sum(r.bytecodes for r in plain):8} {sum(r.seconds for r in reports):6.1f} s"
    )


def break_counts(reports: list[MethodReport]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for report in reports:
        if report.plain == "pass":
            counts.update({(code, reason) for code, reason, _ in report.breaks[:1]})
            if not report.breaks and not report.whole:
                counts.update({("raised", raised) for raised in report.raised[:1]})
    return counts


if __name__ == "__main__":
    main(sys.argv[1:])
