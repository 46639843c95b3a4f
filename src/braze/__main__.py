"""`python -m braze`: a command line.

python -m braze doctor                    what this machine has, and what it lacks
python -m braze run train.py [arguments]  a script, its torch.compile by Braze; a summary
python -m braze bench model.py:make       eager, torch.compile and Braze side by side
python -m braze bisect train.py           which stage is wrong about the script's graphs
python -m braze minify train.py           the same, and small scripts that show it
python -m braze report folder             what BRAZE_TRACE=folder left: times, a Perfetto trace
python -m braze cache                     the cache of kernels
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from braze.command_line.bench import add_bench, run_bench
from braze.command_line.bisect_script import add_bisect, add_minify, run_bisect, run_minify
from braze.command_line.cache import add_cache, run_cache
from braze.command_line.doctor import run_doctor
from braze.command_line.report import add_report, run_report
from braze.command_line.run_script import add_run, run_script

_Declare: TypeAlias = Callable[[argparse.ArgumentParser], None]
_Run: TypeAlias = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the status to exit with."""
    parser = argparse.ArgumentParser(prog="python -m braze")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (text, declare, _) in _COMMANDS.items():
        declare(commands.add_parser(name, help=text, description=text))
    given = parser.parse_args(arguments)
    _, _, run = _COMMANDS[given.command]
    return run(given)


def _nothing(parser: argparse.ArgumentParser) -> None:
    """Declare no arguments."""


_COMMANDS: Mapping[str, tuple[str, _Declare, _Run]] = {
    "doctor": ("what this machine has, what it lacks, and how to get it", _nothing, run_doctor),
    "run": ("run a script with its torch.compile by Braze, and sum up", add_run, run_script),
    "bench": ("time eager, torch.compile and Braze side by side", add_bench, run_bench),
    "bisect": ("find the first stage that is wrong about a script", add_bisect, run_bisect),
    "minify": ("the same, and write small scripts that show it", add_minify, run_minify),
    "report": ("sum up the compiles that BRAZE_TRACE wrote", add_report, run_report),
    "cache": ("the cache of compiled kernels", add_cache, run_cache),
}

if __name__ == "__main__":
    sys.exit(main())
