"""Kernels in the report of a trace: how long each took, and its share of the roofline.

The roofline (Williams, Waterman and Patterson, 2009) is the time that a kernel needs at least: its
bytes at the machine's rate of memory, or the operations of its products at that of products,
whichever is longer. A kernel without products counts bytes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

Line = Mapping[str, Any]  # of a trace's file, as `json` reads it

MOST_PRINTED = 5


@final
class TimeTable:
    """What the processes of a trace measured.

    rates: what the machine reaches, of each process that found it.
    """

    def __init__(self, times: Sequence[Line]) -> None:
        self.rates: dict[int, Line] = {t["process"]: t["rates"] for t in times if t["rates"]}
        self._found = {
            (each["process"], title, name): measured
            for each in times
            for title, rows in each["graphs"].items()
            for name, *measured in rows
        }

    def rows(self, line: Line) -> list[dict[str, Any]]:
        """The kernels and calls of ATen of a compile; those that took longest first."""
        rows = [self._kernel(line, kernel) for kernel in line["kernels"]]
        known = {(row["graph"], row["name"]) for row in rows}
        rows += [
            {**_row(name, title, measured), "bytes": None, "places": (), **_NO_SHARE}
            for (process, title, name), measured in self._found.items()
            if process == line["process"] and title in line["graphs"]
            if name and (title, name) not in known
        ]
        return sorted(rows, key=lambda row: -row["total"])

    def _kernel(self, line: Line, kernel: Line) -> dict[str, object]:
        measured = self._found.get((line["process"], kernel["graph"], kernel["name"]))
        row = {**kernel, **_row(kernel["name"], kernel["graph"], measured)}
        rates = self.rates.get(line["process"])
        if rates is None or measured is None or not kernel["is_whole"]:
            return {**row, **_NO_SHARE}
        return {**row, **_share(kernel, rates, row["least"])}


def slowest(lines: Sequence[Line], times: Sequence[Line]) -> Iterator[str]:
    """A few lines of text: what took longest of all compiles."""
    table = TimeTable(times)
    rows = [row for line in lines for row in table.rows(line) if row["calls"]]
    if not rows:
        return
    spent: Counter[tuple[str, str]] = Counter()
    best = {}
    for row in rows:
        key = row["name"], ", ".join(row["places"])
        spent[key] += row["total"]
        best[key] = row
    yield "kernels: seconds, share of the roofline"
    for key, seconds in spent.most_common(MOST_PRINTED):
        share = best[key]["share"]
        shown = "" if share is None else f", {100 * share:.0f} % of {best[key]['limit']}"
        yield f"  {' of '.join(part for part in key if part)}: {seconds:.4f}{shown}"


# --- private ---------------------------------------------------------------------------------

_NO_SHARE: Mapping[str, Any] = {"share": None, "limit": ""}


def _row(name: str, graph: str, measured: Sequence[object] | None) -> dict[str, object]:
    calls, total, least = measured or (0, 0.0, 0.0)
    return {"name": name, "graph": graph, "calls": calls, "total": total, "least": least}


def _share(kernel: Line, rates: Line, seconds: float) -> dict[str, object]:
    """How near a kernel comes to what it needs at least, and which of the two limits that is."""
    moving, computing = (
        kernel["bytes"] / rates["memory"],
        kernel["operations"] / rates["products"],
    )
    least = max(moving, computing)
    if not least or not seconds:
        return dict(_NO_SHARE)
    return {"share": least / seconds, "limit": "products" if computing > moving else "memory"}
