"""How `braze.status()` is printed: a table, and below it what each callable has to say.

callable   calls  eager  rests  graphs  entries  breaks  recompiles
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from braze.compile_records import CallableStatus
from braze.report.tables import table

if TYPE_CHECKING:
    from braze.report.status import Status

_COLUMNS = ("calls", "left to eager", "rests", "graphs", "entries", "breaks", "recompiles")


def sections(status: Status) -> Iterable[RenderableType]:
    """What is printed, one item a part."""
    if not status.rows:
        yield Text("Nothing is compiled.")
        return
    made = table("Compiled callables", "callable", *_COLUMNS)
    for column in made.columns[1:]:
        column.justify = "right"
    for row in status.rows:
        counts = (row.calls, row.calls_left, row.rests_left, row.graphs, row.entries)
        made.add_row(row.name, *map(str, [*counts, len(row.breaks), row.recompiles]))
    yield made
    for row in status.rows:
        lines = list(_lines(row))
        if lines:
            yield Text(f"{row.name}, {row.origin}", style="bold")
            yield from lines
    if status.packed_bytes:
        yield Text(f"Packed weights: {status.packed_bytes / (1 << 20):.1f} MiB")
    if status.frozen_bytes:
        yield Text(f"Frozen weights: {status.frozen_bytes / (1 << 20):.1f} MiB")


def _lines(row: CallableStatus) -> Iterable[Text]:
    for why, count in row.left_to_eager.items():
        what = "rest of a call" if why.is_rest else "call"
        code = f" [{why.code}]" if why.code else ""
        yield Text(f"  {count} x {what} left to eager: {why.origin} {why.reason}{code}")
    for note in row.breaks:
        yield Text(f"  break: {note.origin} {note.reason} [{note.code}]")
    if row.last_recompile:
        yield Text(f"  last recompile: {row.last_recompile}")
    for text in row.eager_kernels:
        yield Text(f"  {text}")
