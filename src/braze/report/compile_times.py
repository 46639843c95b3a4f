"""What `braze.compile_times()` returns: seconds by stage, of each compile or of all together."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from braze.compile_records import CompileRecord

TOTAL = "total"


def tabulate(records: Iterable[CompileRecord], *, aggregate: bool) -> list[tuple[str, ...]]:
    """Rows of (function, stage, seconds, ...), one number a compile, in the order in which stages
    begin; aggregate: one number of all of them. The first row names the columns."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for record in records:
        name = f"{record.function} ({record.origin})"
        for stage, spent in (*record.stages, (TOTAL, record.seconds)):
            seconds.setdefault((name, stage), []).append(spent)
    rows: list[tuple[str, ...]] = [("Function", "Stage", "Runtimes (s)")]
    for (name, stage), all_spent in seconds.items():
        shown = [sum(all_spent)] if aggregate else all_spent
        rows.append((name, stage, ", ".join(f"{spent:.4f}" for spent in shown)))
    return rows


def print_times(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as text, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    padded = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)) for row in rows]
    return "\n".join(line.rstrip() for line in padded)


def as_csv(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as comma-separated values."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()
