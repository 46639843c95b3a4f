"""What `python -m braze run` does about the processes that a script starts.

A folder with a `sitecustomize.py` is first on their PYTHONPATH: once such a process has imported
torch, calls of `torch.compile` are Braze's there, too. Each process leaves what it compiled as a
file in that folder. Forked processes compile without it, and do the same to be counted.
Interpreters that ignore the environment or `site` (`python -E`, `-I`, `-S`) are not reached.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import final

from braze.api import on_event
from braze.environment import for_children, run_folder_from_environment
from braze.frozen import frozen
from braze.installation import install
from braze.trace import JOURNAL

# Runs as a child begins: no module of Braze, nor torch, is imported unless the child does that.
SITE_CUSTOMIZE = """\
import importlib.abc
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = {root!r}


class _BehindTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            if importlib.util.find_spec("braze") is None:
                sys.path.append(_ROOT)
            from braze.command_line.children import begin

            begin()

        spec.loader.exec_module = exec_module
        return spec


if "torch" not in sys.modules:
    sys.meta_path.insert(0, _BehindTorch())

# The environment's own sitecustomize, which this one stands before.
sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != _HERE]
_OURS = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except ModuleNotFoundError as missing:
    sys.modules["sitecustomize"] = _OURS  # where the import that runs this looks for it
    if missing.name != "sitecustomize":
        raise
"""


@final
@frozen
class ChildSummary:
    """What one process compiled. seconds: of compiling; left: frames that run eagerly."""

    graphs: int
    operators: int
    seconds: float
    breaks: int
    left: int


@contextlib.contextmanager
def watched_children() -> Iterator[Path]:
    """A block in which children of this process compile with Braze; the folder of their
    summaries, which goes at its end."""
    process, folder = os.getpid(), tempfile.mkdtemp(prefix="braze-run-")
    root, watcher = str(Path(__file__).parents[2]), _Fork()
    Path(folder, "sitecustomize.py").write_text(SITE_CUSTOMIZE.format(root=root))
    restore = for_children(folder)
    multiprocessing.util.register_after_fork(watcher, _Fork.begun)
    os.register_at_fork(after_in_child=_write_at_exit)
    try:
        yield Path(folder)
    finally:
        if os.getpid() == process:  # a fork that leaves by the script's end is one of the children
            restore()
            shutil.rmtree(folder, ignore_errors=True)


def begin() -> None:
    """In a child that has imported torch."""
    install()
    _write_at_exit()


def summaries(folder: Path) -> list[ChildSummary]:
    """Those of the children that compiled something."""
    made = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError):  # a child that was ended as it wrote
            made.append(ChildSummary(**json.loads(path.read_text())))
    return [each for each in made if each.graphs or each.breaks or each.left]


# --- private ---------------------------------------------------------------------------------


@final
class _Fork:
    """What `multiprocessing` tells of its forked processes: they end without `atexit`."""

    def begun(self) -> None:
        multiprocessing.util.Finalize(None, _write_summary, exitpriority=0)


def _write_at_exit() -> None:
    """Write the summary with each compile, for a process that is ended, and as this one ends."""
    _BEFORE[:] = [len(JOURNAL.records()), len(JOURNAL.left_to_eager())]
    if not _LISTENS:
        _LISTENS.append(on_event(lambda event: _write_summary()))
    atexit.register(_write_summary)


# Of what this process has from the one that it was forked from.
_BEFORE = [0, 0]
_LISTENS: list[object] = []


def _write_summary() -> None:
    folder = run_folder_from_environment()
    if not folder:
        return
    records = JOURNAL.records()[_BEFORE[0] :]
    graphs = [record for record in records if record.outcome == "graph" and record.ops]
    left = len(JOURNAL.left_to_eager()) - _BEFORE[1]
    made = {
        "graphs": len(graphs),
        "operators": sum(len(record.ops) for record in graphs),
        "seconds": sum(record.seconds for record in records),
        "breaks": sum(record.graph_break is not None for record in records),
        "left": max(left, 0),
    }
    with contextlib.suppress(OSError):  # the folder goes with the command
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(made))
