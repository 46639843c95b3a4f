"""The timeline of the HTML report: when each compile ran, and its stages, as rectangles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 1000.0
GAP_SHARE = 0.02  # of the time that compiles take: as wide as a longer pause between them is drawn


def timeline(numbered: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, object]:
    """rows: one a compile, with the stages it is made of; stages: names, for the legend."""
    lines = [line for _, line in numbered]
    starts = _starts(lines)
    end = max((s + line["seconds"] for s, line in zip(starts, lines, strict=True)), default=0.0)
    scale = WIDTH / end if end else 0.0
    names = list(dict.fromkeys(name for line in lines for name, _ in line["stages"]))
    rows = []
    for (number, line), start in zip(numbered, starts, strict=True):
        bars = [
            {
                "name": name,
                "number": names.index(name),
                "seconds": stop - begin,
                "x": scale * (start + begin),
                "width": max(scale * (stop - begin), 0.5),
            }
            for name, begin, stop in line["spans"]
            if name in names
        ]
        bars.sort(key=lambda bar: -bar["seconds"])  # those inside of others last, and so on top
        whole = {"x": scale * start, "width": max(scale * line["seconds"], 1.0)}
        row = {"number": number, "function": line["function"], "rank": line["rank"]}
        rows.append({**row, "seconds": line["seconds"], "whole": whole, "bars": bars})
    return {"rows": rows, "stages": list(enumerate(names)), "width": WIDTH}


# --- private ---------------------------------------------------------------------------------


def _starts(lines: Sequence[Mapping[str, Any]]) -> list[float]:
    """When each compile is drawn to begin: pauses in which nothing compiles are cut short. lines:
    in the order in which they began."""
    most = GAP_SHARE * sum(line["seconds"] for line in lines)
    starts: list[float] = []
    cut, busy_until = 0.0, lines[0]["began"] if lines else 0.0
    first = busy_until
    for line in lines:
        cut += max(line["began"] - busy_until - most, 0.0)
        starts.append(line["began"] - first - cut)
        busy_until = max(busy_until, line["began"] + line["seconds"])
    return starts
