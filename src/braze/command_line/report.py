"""`python -m braze report folder`: what `BRAZE_TRACE=folder` left there, summed up.

`report.html`, a page that needs no network, is written beside it, and `perfetto.json`, for
https://ui.perfetto.dev or chrome://tracing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from braze.errors import UserError
from braze.report.html.kernels import slowest
from braze.report.html_report import html_report
from braze.report.trace_folder import perfetto


def add_report(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", type=Path, help="that of BRAZE_TRACE")


def run_report(given: argparse.Namespace) -> int:
    """Write the page and the trace, and print a summary; 1 where the folder holds no compiles, or
    the page could not be made."""
    lines = _lines(given.folder)
    if not lines:
        print(f"no compiles in {given.folder}: was BRAZE_TRACE set to it?", file=sys.stderr)
        return 1
    target = given.folder / "perfetto.json"
    target.write_text(json.dumps(perfetto(lines)))
    for text in _summary(lines):
        print(text)
    print(f"{target}: for ui.perfetto.dev. No weights are in it, nor in the lines beside it.")
    eager = [json.loads(path.read_text()) for path in given.folder.glob("eager_calls_*.json")]
    times = [json.loads(path.read_text()) for path in given.folder.glob("kernel_times_*.json")]
    for text in slowest(lines, times):
        print(text)
    try:
        text = html_report(lines, eager, times)
    except UserError as missing:
        print(missing, file=sys.stderr)
        return 1
    written = given.folder / "report.html"
    written.write_text(text, encoding="utf-8")
    print(f"{written}: opens without a network, and holds no values of tensors either.")
    return 0


# --- private ---------------------------------------------------------------------------------

_SHOWN = 10


def _lines(folder: Path) -> list[dict[str, object]]:
    texts = [t for path in sorted(folder.glob("*.jsonl")) for t in path.read_text().splitlines()]
    return [json.loads(text) for text in texts]


def _summary(lines: list[dict[str, Any]]) -> list[str]:
    seconds: Counter[str] = Counter()
    compiles: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for line in lines:
        key = f"{line['function']} ({line['origin']})"
        seconds[key] += line["seconds"]
        compiles[key] += 1
        for name, used in line["stages"]:
            spent[name] += used
    breaks = Counter(f"{b['origin']}: {b['reason']} [{b['code']}]" for line in lines
                     if (b := line["break"]))  # fmt: skip
    total = sum(seconds.values())
    stages = ", ".join(f"{name} {used:.2f}" for name, used in spent.most_common())
    found = [f"{len(lines)} compiles, {total:.2f} s ({stages})", "function: compiles, seconds"]
    found += [f"  {k}: {compiles[k]}, {s:.2f}" for k, s in seconds.most_common(_SHOWN)]
    if breaks:
        found += ["graph breaks", *(f"  {n} x {text}" for text, n in breaks.most_common(_SHOWN))]
    return found
