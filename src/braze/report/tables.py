"""How an explanation is printed: tables by `rich`."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from braze.compile_records import BreakNote, LeftToEager
from braze.report.amounts import as_bytes

if TYPE_CHECKING:
    from braze.report.explain import Explanation

# Rows of the tables of operators and guards in the printed form; the object holds all.
SHOWN_ROWS = 20


def sections(explanation: Explanation) -> Iterable[RenderableType]:
    """What is printed, one item a part."""
    yield _headline(explanation)
    for number, note in enumerate(explanation.break_reasons, 1):
        yield _break_text(number, note)
    for fallback in explanation.fallbacks:
        yield Text(f"Fallback: {fallback}", style="yellow")
    for why in explanation.left_to_eager:
        yield _left_text(why)
    if frozen := explanation.counters["frozen parameters"]:
        held = explanation.counters["frozen bytes"] / (1 << 20)
        constants = _plural(explanation.counters["frozen constants"], "constant")
        what = f"{frozen} parameters and buffers"
        yield Text(f"Frozen: {what} as {constants} of {held:.1f} MiB")
    for padding in explanation.paddings:
        yield Text(f"Recordings: {padding}")
    if explanation.graph_count:
        yield _ops_table(explanation)
    if explanation.stage_seconds:
        yield _times_table(explanation)
    if explanation.passes:
        yield _passes_table(explanation)
    if explanation.kernels:
        yield _kernels_table(explanation)
    if explanation.unfused:
        yield _list("Not fused", explanation.unfused)
    if explanation.memory:
        yield _memory_table(explanation)
    if explanation.symbols:
        yield _list("Sizes and numbers that may change", map(str, explanation.symbols))
    if explanation.guards:
        yield _list(_plural(len(explanation.guards), "guard"), explanation.guards)


def _headline(explanation: Explanation) -> Text:
    graphs, breaks = explanation.graph_count, explanation.break_count
    text = Text(f"{explanation.function}: ", style="bold")
    text.append(f"{_plural(graphs, 'graph')}, {_plural(breaks, 'break')}, ")
    text.append(f"{_plural(explanation.op_count, 'operator')}, ")
    text.append(f"compiled in {explanation.compile_seconds:.3f} s")
    return text


def _break_text(number: int, note: BreakNote) -> Text:
    text = Text(f"Break {number}: ", style="bold red")
    text.append(f"{note.origin} ", style="cyan")
    text.append(f"{note.reason} [{note.code}]", style="default not bold")
    for file, line, function in note.stack:
        source = linecache.getline(file, line).strip()
        shown = f": {source}" if source else ""
        text.append(f"\n    {file}:{line} in {function}{shown}", style="cyan not bold")
    if note.cost:
        text.append(f"\n  costs: {note.cost}", style="default not bold")
    if note.hint:
        text.append(f"\n  {note.hint}", style="green not bold")
    return text


def _left_text(why: LeftToEager) -> Text:
    part = "The rest of a call" if why.is_rest else "A call"
    if why.code == "single-use":
        part = "This call alone"
    text = Text(f"{part} ran eagerly: ", style="yellow")
    text.append(f"{why.origin} ", style="cyan")
    text.append(f"{why.reason} [{why.code}]", style="default not bold")
    if why.hint:
        text.append(f"\n  {why.hint}", style="green not bold")
    return text


def _ops_table(explanation: Explanation) -> Table:
    made = table("Operators", "graph", "operator", "calls", "runs by")
    extern = set(explanation.extern_ops)
    for number, ops in enumerate(explanation.ops_per_graph, 1):
        for name, calls in ops.most_common(SHOWN_ROWS):
            made.add_row(str(number), name, str(calls), "ATen" if name in extern else "Braze")
        if len(ops) > SHOWN_ROWS:
            made.add_row(str(number), f"... {len(ops) - SHOWN_ROWS} more", "", "")
    return made


def _times_table(explanation: Explanation) -> Table:
    made = table("Time", "stage", "ms")
    made.columns[1].justify = "right"
    for name, seconds in explanation.stage_seconds.items():
        made.add_row(name, f"{1e3 * seconds:.1f}")
    return made


def _passes_table(explanation: Explanation) -> Table:
    made = table("Passes", "stage", "pass", "ms", "")
    made.columns[2].justify = "right"
    seconds: dict[tuple[str, str], float] = {}
    changed = set()
    for note in explanation.passes:
        key = note.stage, note.name
        seconds[key] = seconds.get(key, 0.0) + note.seconds
        if note.changed:
            changed.add(key)
    for key, spent in seconds.items():
        made.add_row(*key, f"{1e3 * spent:.1f}", "" if key in changed else "(unchanged)")
    return made


def _kernels_table(explanation: Explanation) -> Table:
    made = table("Kernels", "kernel", "bytes", "lines")
    made.columns[1].justify = "right"
    for note in explanation.kernels[:SHOWN_ROWS]:
        lines = ", ".join([os.path.basename(place) for place in note.places])
        made.add_row(note.name, f"{note.bytes:,}", lines)
    if len(explanation.kernels) > SHOWN_ROWS:
        made.add_row(f"... {len(explanation.kernels) - SHOWN_ROWS} more", "", "")
    return made


def table(title: str, *columns: str) -> Table:
    """An empty table with its title above."""
    return Table(*columns, title=title, title_justify="left", title_style="bold", box=SIMPLE)


def _memory_table(explanation: Explanation) -> Table:
    made = table("Memory at most", "graph", "by operators", "as compiled", "")
    for column in made.columns[1:3]:
        column.justify = "right"
    for number, note in enumerate(explanation.memory, 1):
        least = "" if note.is_whole else "and what has changing sizes"
        made.add_row(str(number), as_bytes(note.before), as_bytes(note.after), least)
    return made


def _list(title: str, lines: Iterable[str]) -> Text:
    """A title, and a line each."""
    text = Text(title, style="bold")
    shown = [*lines]
    for line in shown[:SHOWN_ROWS]:
        text.append("\n  " + line.replace("\n", "\n  "), style="default not bold")
    if len(shown) > SHOWN_ROWS:
        text.append(f"\n  ... {len(shown) - SHOWN_ROWS} more", style="default not bold")
    return text


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
