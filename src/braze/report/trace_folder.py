"""`BRAZE_TRACE=folder`: each compile as a line of JSON, in a file of each process.

A line says what a `CompileRecord` does: times, passes, kernels, guards, breaks; the programs behind
each pass, the sources, and the memory of the process. No tensor's values are in it, and so no
weights; numbers and names that guards compare are. Two more files of each process, written at its
exit, hold what calls left to eager, and how long kernels took. `python -m braze report` makes a
page and a trace for Perfetto of them.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

import torch

from braze.compile_records import LISTENERS, CompileEvent, CompileRecord
from braze.environment import warn_of_output
from braze.kept_texts import KeptTexts, KernelNote
from braze.kernel_times import GraphTimes, MachineRates
from braze.report.program_text import ProgramPrinter
from braze.trace import JOURNAL

VERSION = 3


@final
class TraceFolder:
    """A listener that appends the records of this process to its file in the folder.

    times: of kernels of this process.
    """

    def __init__(self, folder: Path, times: GraphTimes | None = None) -> None:
        self._folder, self._times = folder, times or GraphTimes()

    def __call__(self, event: CompileEvent) -> None:
        if event.record is None:
            return
        line = json.dumps(as_data(event.record), default=str)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(self._folder / f"compiles_{os.getpid()}.jsonl", "a") as file:
                file.write(line + "\n")
        except OSError as error:
            warn_of_output("BRAZE_TRACE", self._folder, error)

    def write_eager_calls(self) -> None:
        """Write what calls were left to eager so far, and why."""
        left = [{name: getattr(why, name) for name in _OF_CALL} for why in JOURNAL.left_to_eager()]
        data = {"left_to_eager": left, "fallbacks": JOURNAL.fallbacks()}
        if self._folder.is_dir():
            (self._folder / f"eager_calls_{os.getpid()}.json").write_text(json.dumps(data))

    def write_kernel_times(self) -> None:
        """Write how long the kernels of this process took so far, if any ran, and what the machine
        reaches."""
        graphs = self._times.graphs()
        ran = {title: [*times.items()] for title, times in graphs.items()}
        ran = {title: times for title, times in ran.items() if times}
        if not ran or not self._folder.is_dir():
            return
        found = (graphs[title].rates() for title in ran)
        rates: MachineRates | None = next((each for each in found if each is not None), None)
        data = {
            "version": VERSION,
            "process": os.getpid(),
            "rates": None if rates is None else {n: getattr(rates, n) for n in _OF_RATES},
            "graphs": {
                title: [[name, time.calls, time.total, time.least] for name, time in times]
                for title, times in ran.items()
            },
        }
        (self._folder / f"kernel_times_{os.getpid()}.json").write_text(json.dumps(data))


def trace_to(folder: str) -> None:
    """Write what is compiled from now on to the folder, with its guards; "" for nowhere."""
    if folder:
        JOURNAL.detailed = True
        JOURNAL.new_texts = lambda: KeptTexts(ProgramPrinter())
        JOURNAL.times = GraphTimes()
        written = TraceFolder(Path(folder), JOURNAL.times)
        LISTENERS.add(written)
        atexit.register(written.write_eager_calls)
        atexit.register(written.write_kernel_times)


def as_data(record: CompileRecord) -> dict[str, object]:
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
        "guards": record.guards or _guard_lines(record),
        "counters": dict(record.counters),
        "ops": Counter(record.ops),
        "spans": [list(span) for span in record.spans],
        "passes": [[p.stage, p.name, p.seconds, p.changed] for p in record.passes],
        "kernels": [_kernel(note) for note in record.kernels],
        "texts": [{n: getattr(t, n) for n in _OF_TEXT} for t in record.texts if t.kind != "guards"],
        "memory": memory(),
        "break": None if broke is None else {n: getattr(broke, n) for n in _OF_BREAK},
    }


def memory() -> dict[str, int]:
    """Bytes that the process holds now, and at most held, where the system tells it."""
    found = {}
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text().splitlines()
        sizes = dict(row.split(":", 1) for row in status)
        for name, row in (("resident", "VmRSS"), ("resident at most", "VmHWM")):
            if row in sizes:
                found[name] = 1024 * int(sizes[row].split()[0])
    if torch.cuda.is_initialized():
        found["device"] = torch.cuda.memory_allocated()
        found["device at most"] = torch.cuda.max_memory_allocated()
    return found


def perfetto(lines: Iterable[Mapping[str, Any]]) -> dict[str, object]:
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


def _kernel(note: KernelNote) -> dict[str, object]:
    return {name: getattr(note, name) for name in _OF_KERNEL}


def _guard_lines(record: CompileRecord) -> list[str]:
    """The tree of the guards, whose text is not kept a second time."""
    return [line for t in record.texts if t.kind == "guards" for line in t.text.splitlines()]


_PLAIN = (
    "function origin outcome began seconds stages extern_ops fallbacks raised once paddings graphs"
).split()
_OF_KERNEL = "name bytes places graph operations is_whole".split()
_OF_RATES = "memory products threads".split()
_OF_TEXT = "kind text stage name changed left_out".split()
_OF_CALL = "code reason hint origin function text".split()
_OF_BREAK = "code reason hint origin title prospect".split()
