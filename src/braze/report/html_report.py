"""`report.html`: the lines of a `BRAZE_TRACE` folder as one page that opens without a network.

The page is data of the lines in a template; it says what the compiler did, and holds no tensor's
values. Its size is bounded: texts that do not fit are named with their length, and stay in the
JSON lines.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from braze.errors import UserError
from braze.report.amounts import as_bytes, as_time, short_places
from braze.report.html.graphs import graphs_of_compile
from braze.report.html.kernels import TimeTable
from braze.report.html.source import source_files
from braze.report.html.timeline import timeline

Line = Mapping[str, Any]  # of a trace's file, as `json` reads it

# Characters in a page, as they stand there: of what passes changed, and of all other programs,
# sources and guards.
MOST_CHANGES = 1_200_000
MOST_CHARACTERS = 2_800_000
MOST_SHOWN = 200  # compiles in a page, those that took longest


@final
class TextBudget:
    """How many characters of texts a page still takes."""

    def __init__(self, left: int) -> None:
        self._left = left

    def takes(self, text: str) -> bool:
        """Whether a text still fits; then it is counted."""
        needed = len(text) + 4 * sum(map(text.count, "<>&'\""))  # as entities
        if needed > self._left:
            return False
        self._left -= needed
        return True


def html_report(
    lines: Sequence[Line], eager_calls: Sequence[Line], times: Sequence[Line] = ()
) -> str:
    """The page. lines: of compiles; eager_calls: what each process left to eager; times: how long
    kernels of each took. Raises UserError where jinja2 is not installed."""
    try:
        import jinja2
    except ImportError as missing:
        raise UserError(
            "report.html needs the package jinja2: `pip install 'braze[report]'`"
        ) from missing
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["bytes"] = as_bytes
    environment.filters["time"] = as_time
    environment.filters["place"] = short_places
    return environment.get_template("report.html").render(page(lines, eager_calls, times))


def page(
    lines: Sequence[Line], eager_calls: Sequence[Line], times: Sequence[Line] = ()
) -> dict[str, object]:
    """The data that the template shows."""
    ordered = sorted(lines, key=lambda line: line["began"])
    longest = sorted(ordered, key=lambda line: -line["seconds"])[:MOST_SHOWN]
    shown = {id(line) for line in longest}
    numbered = [(n, line) for n, line in enumerate(ordered, 1) if id(line) in shown]
    budget, changes = TextBudget(MOST_CHARACTERS), TextBudget(MOST_CHANGES)
    table = TimeTable(times)
    compiles = [_compile(number, line, budget, changes, table) for number, line in numbered]
    return {
        "compiles": compiles,
        "hidden": len(ordered) - len(compiles),
        "seconds": sum(line["seconds"] for line in ordered),
        "timeline": timeline(numbered),
        "files": source_files(ordered, eager_calls, budget.takes),
        "ranks": _ranks(ordered),
        "rates": [table.rates[process] for process in sorted(table.rates)],
        "breaks": _breaks(ordered),
        "eager": [call for left in eager_calls for call in left["left_to_eager"]],
        "fallbacks": _fallbacks(ordered, eager_calls),
    }


# --- private ---------------------------------------------------------------------------------


def _compile(
    number: int, line: Line, budget: TextBudget, changes: TextBudget, table: TimeTable
) -> dict[str, object]:
    """What the page shows of one compile. changes: of what passes changed."""
    texts = line.get("texts", [])
    # Graphs as captured are the first that the page has room for, then guards.
    graphs = graphs_of_compile(line, budget.takes, changes.takes)
    guards = _tree(_guards(line, budget))
    named = {kind: _joined(texts, kind, budget) for kind in _KINDS}
    steps, refusals = _fusion(named["schedule"])
    kernels = [{**each, "steps": steps.get(each["name"], "")} for each in line["kernels"]]
    return {
        "number": number,
        **{name: line[name] for name in _SHOWN},
        "memory": line.get("memory", {}),
        "ops": Counter(line["ops"]).most_common(),
        "guards": guards,
        "recompile": named["recompiles"],
        "sizes": named["dynamic"],
        "sources": named["output_code"],
        "kernels": kernels,
        "timed": table.rows(line),
        "refusals": refusals,
        "graphs": graphs,
    }


_KINDS = ("recompiles", "dynamic", "schedule", "output_code")
_SHOWN = (
    "function origin outcome began seconds stages extern_ops fallbacks raised once rank process "
    "counters break"
).split()


def _guards(line: Line, budget: TextBudget) -> Sequence[str]:
    rows = [short_places(row) for row in line["guards"]]
    fits = budget.takes("".join(rows) + _MARKUP * len(rows))
    return rows if fits else [f"({len(rows)} rows are left out: {_WHERE})"]


_MARKUP = 60 * "."  # of a row of a tree
_WHERE = "the page is full, the JSON lines beside it have what was kept"


def _joined(texts: Sequence[Line], kind: str, budget: TextBudget) -> str:
    """The texts of a kind, one below the other; a sentence for each that does not fit."""
    found = []
    for text in texts:
        if text["kind"] == kind:
            fits = not text["left_out"] and budget.takes(text["text"])
            size = text["left_out"] or len(text["text"])
            found.append(text["text"] if fits else f"({size} characters are left out: {_WHERE})")
    return "\n".join(found)


def _fusion(text: str) -> tuple[dict[str, str], list[str]]:
    """What each kernel of a schedule's text computes, by name; and what was not fused, and why."""
    steps: dict[str, list[str]] = {}
    name = ""
    refusals: dict[str, None] = {}
    for line in text.splitlines():
        if line.startswith("kernel "):
            name = line.split()[1].rstrip(":")
            steps[name] = [line]
        elif line.startswith("not fused: "):
            refusals[line.removeprefix("not fused: ")] = None
        elif line.startswith(" ") and name:
            steps[name].append(line)
        else:
            name = ""
    return {name: "\n".join(lines) for name, lines in steps.items()}, list(refusals)


def _tree(lines: Sequence[str]) -> list[dict[str, object]]:
    """Lines as a tree, by how far they are indented."""
    root: list[dict[str, Any]] = []
    open_nodes: list[tuple[int, list[dict[str, Any]]]] = [(-1, root)]
    for line in lines:
        depth = len(line) - len(line.lstrip())
        while open_nodes[-1][0] >= depth:
            open_nodes.pop()
        text, _, place = line.strip().partition("  # ")
        node: dict[str, Any] = {"text": text.rstrip(), "place": place, "children": []}
        open_nodes[-1][1].append(node)
        open_nodes.append((depth, node["children"]))
    return root


def _ranks(lines: Sequence[Line]) -> list[dict[str, object]]:
    """A row for each process."""
    found = []
    by_process = sorted(lines, key=lambda line: (line["rank"], line["process"]))
    for (rank, process), group in itertools.groupby(
        by_process, lambda line: (line["rank"], line["process"])
    ):
        own = list(group)
        outcomes = Counter(line["outcome"] for line in own)
        found.append(
            {
                "rank": rank,
                "process": process,
                "seconds": sum(line["seconds"] for line in own),
                "outcomes": outcomes.most_common(),
                "breaks": sum(line["break"] is not None for line in own),
                "memory": dict(_peaks(own)),
            }
        )
    return found


def _peaks(lines: Sequence[Line]) -> Iterator[tuple[str, int]]:
    names = dict.fromkeys(name for line in lines for name in line.get("memory", {}))
    for name in names:
        yield name, max(line.get("memory", {}).get(name, 0) for line in lines)


def _breaks(lines: Sequence[Line]) -> list[tuple[dict[str, object], int]]:
    counts = Counter(tuple(line["break"].items()) for line in lines if line["break"])
    return [(dict(items), count) for items, count in counts.most_common()]


def _fallbacks(lines: Sequence[Line], eager_calls: Sequence[Line]) -> list[str]:
    found = [reason for line in lines for reason in line["fallbacks"]]
    found += [reason for left in eager_calls for reason in left["fallbacks"]]
    return list(dict.fromkeys(found))
