"""`python -m braze run script.py`: an unchanged script, compiled by Braze, and a summary.

The summary goes to standard error, so that what the script prints stays as it is.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braze.api import status
from braze.command_line.children import ChildSummary, summaries, watched_children
from braze.compile_records import CompileRecord
from braze.installation import install
from braze.options import config
from braze.trace import JOURNAL

if TYPE_CHECKING:
    from braze.report.status import Status

# Rows of each kind: all of them fit a screen of 24 lines.
_SHOWN = 4
_WIDTH = 100
_PACKAGE = Path(__file__).parents[1]


def add_run(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-m", dest="is_module", action="store_true", help="script is a module")
    parser.add_argument("script", help="a Python file, or a module's name behind -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")


def run_script(given: argparse.Namespace) -> int:
    """Run the script as `python script arguments` does; its own exit status, or 0."""
    install()
    kept: dict[str, Any] = {}  # what the script compiled is alive for the summary
    with watched_children() as folder:
        process = os.getpid()
        try:
            kept.update(run_target(given))
        except Exception as error:
            print_exception(error)
            return 1
        finally:
            if os.getpid() == process:  # and not in a fork that leaves by the script's end
                print(summary(summaries(folder)), file=sys.stderr)
    return 0


def print_exception(error: BaseException) -> None:
    """Print an exception that a script raised as `python script` does, from the script's line on:
    all of it where the option `verbose` says so, or the script was not begun."""
    frame = error.__traceback__
    while frame is not None and _is_ours(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    if frame is not None and not config.verbose:
        error.__traceback__ = frame
    sys.excepthook(type(error), error, error.__traceback__)


def summary(children: Sequence[ChildSummary] = ()) -> str:
    """What was compiled in this process and how its calls fared, on one screen; and what its
    children compiled."""
    rows, records = status(), JOURNAL.records()
    graphs = [record for record in records if record.outcome == "graph" and record.ops]
    if not records and children:
        return "\n".join(["Braze: nothing was compiled in this process.", *_of_children(children)])
    if not records:
        return "Braze: nothing was compiled. Does the script call torch.compile, and what it gives?"
    seconds = sum(record.seconds for record in records)
    return "\n".join(
        [
            f"Braze: {len(graphs)} graphs of {sum(len(r.ops) for r in graphs)} operators, "
            f"compiled in {seconds:.1f} s",
            *_callables(rows),
            *_counted("graph breaks", _breaks(records)),
            *_counted("left to eager", Counter(map(str, JOURNAL.left_to_eager()))),
            *_counted("by eager kernels", Counter(t for r in records for t in r.fallbacks)),
            *_recompiles(rows),
            *_slowest(records),
            *_of_children(children),
        ]
    )


def run_target(given: argparse.Namespace) -> dict[str, object]:
    """Run the script or the module as Python does; its globals."""
    if given.is_module:
        sys.argv = [given.script, *given.arguments]
        return runpy.run_module(given.script, run_name="__main__", alter_sys=True)
    if not Path(given.script).exists():
        print(f"python -m braze: there is no file {given.script!r}", file=sys.stderr)
        sys.exit(_NO_FILE)
    sys.argv = [given.script, *given.arguments]
    sys.path[0] = str(Path(given.script).resolve().parent)
    return runpy.run_path(given.script, run_name="__main__")


# --- private ---------------------------------------------------------------------------------

_NO_FILE = 2  # Python's own status for a script that is not there


def _is_ours(file: str) -> bool:
    """Whether a frame is one of those that run the script: Braze's, or runpy's."""
    return "runpy" in file or Path(file).is_relative_to(_PACKAGE)


def _callables(rows: Status) -> Iterator[str]:
    for row in sorted(rows, key=lambda row: -row.calls)[:_SHOWN]:
        counts = f"{row.calls} calls, {row.calls_left} left to eager, {row.graphs} graphs"
        yield _line(
            f"  {row.name}: {counts}, {len(row.breaks)} breaks, {row.recompiles} recompiles"
        )
    if len(rows) > _SHOWN:
        yield f"  ... and {len(rows) - _SHOWN} more: braze.status()"


def _breaks(records: tuple[CompileRecord, ...]) -> Counter[str]:
    notes = [record.graph_break for record in records if record.graph_break is not None]
    return Counter(f"{_short(note.origin)} [{note.code}] {note.reason}" for note in notes)


def _of_children(children: Sequence[ChildSummary]) -> Iterator[str]:
    if children:
        graphs, operators = (sum(c.graphs for c in children), sum(c.operators for c in children))
        yield (
            f"in {len(children)} child process{'es' * (len(children) > 1)}: {graphs} graphs of "
            f"{operators} operators, compiled in {sum(c.seconds for c in children):.1f} s"
        )
        breaks, left = (sum(c.breaks for c in children), sum(c.left for c in children))
        if breaks or left:
            yield f"  {breaks} graph breaks, {left} left to eager"


def _short(origin: str) -> str:
    """A place by the file's name alone: lines have to fit."""
    return Path(origin).name


def _recompiles(rows: Status) -> Iterator[str]:
    last = [row.last_recompile for row in rows if row.last_recompile]
    return _counted("recompiles", Counter(last))


def _slowest(records: tuple[CompileRecord, ...]) -> Iterator[str]:
    stages: Counter[str] = Counter()
    for record in records:
        stages.update(dict(record.stages))
    longest = ", ".join(f"{name} {spent:.1f} s" for name, spent in stages.most_common(3))
    yield f"compile time: {longest}"


def _counted(what: str, found: Counter[str]) -> Iterator[str]:
    """A heading and the most frequent texts; nothing where there are none."""
    if found:
        yield f"{what}: {sum(found.values())}"
        for text, count in found.most_common(_SHOWN - 1):
            yield _line(f"  {count} x {text}")
        if len(found) >= _SHOWN:
            yield f"  ... and {len(found) - _SHOWN + 1} other kinds"


def _line(text: str) -> str:
    first = " ".join(text.split("\n")[0].rstrip().split("  ")) if "\n" in text else text
    return first if len(first) <= _WIDTH else f"{first[: _WIDTH - 3]}..."
