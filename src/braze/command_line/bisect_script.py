"""`python -m braze bisect script.py`: which stage is wrong about the graphs of a script.
`python -m braze minify script.py`: the same, and scripts of a few operators that show it.

The script runs unchanged. Each of its graphs goes through every stage at its first call, beside
eager, and then runs by PyTorch's operators; what capture itself makes of the script is not judged:
`braze.bisect(f)(*args)` does, for one call. With `--times`, graphs that are right are timed beside
their operators, and what makes one slow is named.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from braze.command_line.run_script import add_run, run_target
from braze.diagnose import GraphExaminer
from braze.installation import install
from braze.options import config
from braze.stances import set_stance

_RIGHT, _WRONG = 0, 1

add_minify = add_run


def add_bisect(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--times", action="store_true", help="also name what is slow")
    add_run(parser)


def run_bisect(given: argparse.Namespace) -> int:
    """Run the script, and print what is wrong; 1 where something is."""
    examiner = _examined(given, scripts=False, times=given.times)
    for suspect in examiner.suspects:
        print(suspect, file=sys.stderr)
    return _said(examiner)


def run_minify(given: argparse.Namespace) -> int:
    """The same, with a script for each fault, which is run by itself."""
    examiner = _examined(given, scripts=True)
    for suspect in examiner.suspects:
        print(suspect, file=sys.stderr)
    for path in examiner.written:
        done = subprocess.run([sys.executable, str(path)], capture_output=True)
        how = "fails by itself" if done.returncode else "is right by itself, in a fresh process"
        print(f"{path} {how}", file=sys.stderr)
    return _said(examiner)


# --- private ---------------------------------------------------------------------------------


def _examined(given: argparse.Namespace, scripts: bool, times: bool = False) -> GraphExaminer:
    install()
    examiner = GraphExaminer(config.snapshot(), scripts, times)
    with set_stance("default", force_backend=examiner.backend()):
        run_target(given)
    return examiner


def _said(examiner: GraphExaminer) -> int:
    count, wrong = examiner.count, len(examiner.suspects)
    said = f"{wrong} wrong" if wrong else "every stage computes what eager does"
    print(f"Braze: {count} graphs examined: {said}", file=sys.stderr)
    return _WRONG if wrong else _RIGHT
