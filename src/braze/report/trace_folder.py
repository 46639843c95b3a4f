"""`BRAZE_TRACE=folder`: each compile as a line of JSON, in a file of each process.

A line says what a `CompileRecord` does: times, passes, kernels, guards, breaks. No tensor's values
are in it, and so no weights; numbers and names that guards compare are. `python -m braze report`
makes a trace for Perfetto of them.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

import torch

from braze.trace import JOURNAL, LISTENERS, CompileEvent, CompileRecord

VERSION = 1


@final
class TraceFolder:
    """A listener that appends the records of this process to its file in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, event: CompileEvent) -> None:
        if event.record is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            line = json.dumps(as_data(event.record), default=str)
            with open(self._folder / f"compiles_{os.getpid()}.jsonl", "a") as file:
                file.write(line + "\n")


def trace_to(folder: str) -> None:
    """Write what is compiled from now on to the folder, with its guards; "" for nowhere."""
    if folder:
        JOURNAL.detailed = True
        LISTENERS.add(TraceFolder(Path(folder)))


def as_data(record: CompileRecord) -> dict[str, Any]:
    """What a line holds."""
    broke = record.graph_break
    distributed = torch.distributed
    ranks = distributed.is_available() and distributed.is_initialized()
    return {
        "version": VERSION,
        "process": os.getpid(),
        "rank": distributed.get_rank() if ranks else 0,
        "thread": threading.get_ident(),
        **{name: getattr(record, name) for name in _PLAIN},
        "counters": dict(record.counters),
        "ops": Counter(record.ops),
        "spans": [list(span) for span in record.spans],
        "passes": [[p.stage, p.name, p.seconds, p.changed] for p in record.passes],
        "kernels": [[k.name, k.bytes, list(k.places)] for k in record.kernels],
        "break": None if broke is None else {n: getattr(broke, n) for n in _OF_BREAK},
    }


def perfetto(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The trace that Perfetto and chrome://tracing show: a row for each thread that compiled."""
    events: list[dict[str, Any]] = []
    for line in lines:
        place = {"pid": line["process"], "tid": line["thread"], "ph": "X", "cat": "compile"}
        title = f"{line['function']}: {line['outcome']}"
        known = ("origin", "graphs", "fallbacks", "extern_ops", "break", "once", "raised")
        args = {name: line[name] for name in known if line[name]}
        began, spent = 1e6 * line["began"], 1e6 * line["seconds"]
        events.append({**place, "name": title, "ts": began, "dur": spent, "args": args})
        for name, start, end in line["spans"]:
            at = began + 1e6 * start
            events.append({**place, "name": name, "ts": at, "dur": 1e6 * (end - start)})
    ranks = {line["process"]: line["rank"] for line in lines}
    events += [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"rank {rank}"}}
        for pid, rank in ranks.items()
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


# --- private ---------------------------------------------------------------------------------

_PLAIN = (
    "function origin outcome began seconds stages extern_ops guards fallbacks raised once paddings "
    "graphs"
).split()
_OF_BREAK = "code reason hint origin title prospect".split()
