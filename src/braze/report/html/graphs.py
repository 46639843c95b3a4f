"""Graphs of a compile in the HTML report: each as it was captured, and what each pass changed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from braze.report.amounts import short_places

CONTEXT_LINES = 2  # around what changed
_SIGNS = {"+": "ins", "-": "del"}


def graphs_of_compile(
    line: Mapping[str, Any],
    takes: Callable[[str], bool],
    takes_changes: Callable[[str], bool] | None = None,
) -> list[Any]:
    """The graphs that a line of a trace tells of, each with its passes. takes: whether a text still
    fits into the page; takes_changes: the same for what passes changed."""
    titles, times = iter(line["graphs"]), iter(line["passes"])
    graphs: list[dict[str, Any]] = []
    before: dict[str, list[str]] = {}  # each stage's latest program
    for text in line.get("texts", []):
        if text["kind"] != "program":
            continue
        if not text["name"]:
            graphs.append({"title": next(titles, "graph"), "steps": []})
            before = {}
        seconds = next(times, ["", "", 0.0])[2] if text["name"] else 0.0
        if not graphs:  # of a backend that hands over no graph as captured
            graphs.append({"title": next(titles, "graph"), "steps": []})
        step = {"stage": text["stage"], "name": text["name"], "seconds": seconds}
        fits = takes_changes if text["name"] and takes_changes else takes
        graphs[-1]["steps"].append({**step, **_shown(text, before, fits)})
    return graphs


def diff_lines(before: list[str], after: list[str]) -> Iterator[tuple[str, str]]:
    """("ins", "del", "" or "hunk", text) for each line of what changed, and those around it."""
    lines = difflib.unified_diff(before, after, n=CONTEXT_LINES, lineterm="")
    for number, line in enumerate(lines):
        if number < 2:  # the names of files
            continue
        kind = "hunk" if line.startswith("@@") else _SIGNS.get(line[0], "")
        yield kind, line


# --- private ---------------------------------------------------------------------------------


def _shown(
    text: Mapping[str, Any], before: dict[str, list[str]], takes: Callable[[str], bool]
) -> dict[str, object]:
    """changed, left_out, and the lines: all, or those of a diff."""
    stage, after = text["stage"], short_places(text["text"]).splitlines()
    if not text["changed"] or text["left_out"]:
        return {"changed": text["changed"], "left_out": text["left_out"], "lines": []}
    old = before.get(stage)
    before[stage] = after
    lines = [("", line) for line in after]
    if old is not None:
        changed = list(diff_lines(old, after))
        lines = changed if len(changed) < len(lines) else lines  # a pass that makes all anew
    if not takes("\n".join(line for _, line in lines) + 12 * "." * len(lines)):
        return {"changed": True, "left_out": len(text["text"]), "lines": []}
    return {"changed": True, "left_out": 0, "lines": lines}
