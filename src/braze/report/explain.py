"""What `braze.explain(f)(*args)` returns: the compile records of one run, added up and printed."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from braze.trace import BreakNote, CompileRecord, Journal

# Rows of the tables of operators and guards in the printed form; the object holds all.
SHOWN_ROWS = 20
TEXT_WIDTH = 100


@final
@dataclass(frozen=True, slots=True)
class Explanation:
    """How a function was compiled for one call.

    graph_count: graphs with at least one operator; break_count: graph breaks met.
    op_count: operators in all graphs; ops_per_graph: name -> how often, one item a graph.
    break_reasons: in the order in which they were met.
    guards: of all entries; stage_seconds: wall time by stage; compile_seconds: all of it.
    fallbacks: what ran otherwise than compiled; empty when all went well.
    extern_ops: operators that ran by their ATen kernels.
    result: what the call returned.
    """

    function: str
    records: tuple[CompileRecord, ...]
    call_fallbacks: tuple[str, ...]
    result: Any

    @property
    def _graphs(self) -> tuple[CompileRecord, ...]:
        return tuple(r for r in self.records if r.outcome == "graph" and r.ops)

    @property
    def graph_count(self) -> int:
        return len(self._graphs)

    @property
    def break_count(self) -> int:
        return len(self.break_reasons)

    @property
    def op_count(self) -> int:
        return sum(len(record.ops) for record in self._graphs)

    @property
    def break_reasons(self) -> tuple[BreakNote, ...]:
        return tuple(r.graph_break for r in self.records if r.graph_break is not None)

    @property
    def ops_per_graph(self) -> tuple[Counter[str], ...]:
        return tuple(Counter(record.ops) for record in self._graphs)

    @property
    def guards(self) -> tuple[str, ...]:
        return tuple(guard for record in self.records for guard in record.guards)

    @property
    def stage_seconds(self) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for record in self.records:
            for name, spent in record.stages:
                seconds[name] = seconds.get(name, 0.0) + spent
        return seconds

    @property
    def compile_seconds(self) -> float:
        return sum(record.seconds for record in self.records)

    @property
    def counters(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for record in self.records:
            total.update(record.counters)
        return total

    @property
    def fallbacks(self) -> tuple[str, ...]:
        compiled = (reason for record in self.records for reason in record.fallbacks)
        failed = (f"{r.function} was left to eager" for r in self.records if r.outcome == "failed")
        return tuple(dict.fromkeys([*compiled, *failed, *self.call_fallbacks]))

    @property
    def extern_ops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(op for record in self.records for op in record.extern_ops))

    def show(self) -> None:
        """Print to the terminal, in colour where it has colours."""
        Console().print(self)

    def __rich__(self) -> RenderableType:
        return Group(*_sections(self))

    def __str__(self) -> str:
        buffer = io.StringIO()
        console = Console(file=buffer, width=TEXT_WIDTH, color_system=None)
        for section in _sections(self):
            console.print(section, soft_wrap=isinstance(section, Text))  # messages stay whole
        return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())

    __repr__ = __str__


def summarise(function: str, journal: Journal, result: Any) -> Explanation:
    """What a journal gathered while `function` was compiled and run."""
    return Explanation(function, journal.records(), journal.fallbacks(), result)


def _sections(explanation: Explanation) -> Iterable[RenderableType]:
    yield _headline(explanation)
    for number, note in enumerate(explanation.break_reasons, 1):
        yield _break_text(number, note)
    for fallback in explanation.fallbacks:
        yield Text(f"Fallback: {fallback}", style="yellow")
    if explanation.graph_count:
        yield _ops_table(explanation)
    if explanation.stage_seconds:
        yield _times_table(explanation)
    if explanation.guards:
        yield _guard_text(explanation.guards)


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
    if note.hint:
        text.append(f"\n  {note.hint}", style="green not bold")
    return text


def _ops_table(explanation: Explanation) -> Table:
    table = _table("Operators", "graph", "operator", "calls", "runs by")
    extern = set(explanation.extern_ops)
    for number, ops in enumerate(explanation.ops_per_graph, 1):
        for name, calls in ops.most_common(SHOWN_ROWS):
            table.add_row(str(number), name, str(calls), "ATen" if name in extern else "Braze")
        if len(ops) > SHOWN_ROWS:
            table.add_row(str(number), f"... {len(ops) - SHOWN_ROWS} more", "", "")
    return table


def _times_table(explanation: Explanation) -> Table:
    table = _table("Time", "stage", "ms")
    table.columns[1].justify = "right"
    for name, seconds in explanation.stage_seconds.items():
        table.add_row(name, f"{1e3 * seconds:.1f}")
    return table


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", title_style="bold", box=SIMPLE)


def _guard_text(guards: tuple[str, ...]) -> Text:
    text = Text(_plural(len(guards), "guard"), style="bold")
    for guard in guards[:SHOWN_ROWS]:
        text.append(f"\n  {guard}", style="default not bold")
    if len(guards) > SHOWN_ROWS:
        text.append(f"\n  ... {len(guards) - SHOWN_ROWS} more", style="default not bold")
    return text


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
