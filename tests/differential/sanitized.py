"""Random fused programs whose kernels GCC builds with its sanitizers of addresses and of undefined
behaviour: the process ends at the first byte that is read or written outside of an allocation.

    python -m tests.differential.sanitized --programs 100 --first 0

The programs run in a child process, into which the sanitizers' libraries are loaded before Python's
own: memory that PyTorch allocates has guarded bytes around it, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from braze.codegen.cpp import scope
from tests.differential.fusion_programs import make_program
from tests.differential.test_fusion_fuzz import differences, run_compiled

_LIBRARIES = ("libasan.so", "libubsan.so")
_FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1"
_ROOT = Path(__file__).parents[2]


def libraries() -> list[str]:
    """The sanitizers' libraries; none where GCC has not got them."""
    compiler = shutil.which("g++")
    if compiler is None or sys.platform != "linux":
        return []
    found = [
        subprocess.run(
            (compiler, f"-print-file-name={name}"), capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in _LIBRARIES
    ]
    return found if all(os.path.isabs(path) for path in found) else []


def run_sanitized(arguments: Sequence[str], timeout: int) -> subprocess.CompletedProcess[str]:
    """This module in a process with the sanitizers, and a kernel cache of its own."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "LD_PRELOAD": ":".join(libraries()),
            "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",
            "BRAZE_CXXFLAGS": _FLAGS,
            "BRAZE_CACHE_DIR": cache,
            "OMP_NUM_THREADS": "1",
        }
        command = (sys.executable, "-m", "tests.differential.sanitized", "--inside", *arguments)
        return subprocess.run(
            command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=timeout
        )


def _one_further(*arguments: Any) -> Any:
    """Planted: what a kernel loads lies one element further."""
    found = _PLACE(*arguments)
    return scope.Term(f"{found.text} + 1", found.level)


_PLACE = scope._place


def _run(first: int, count: int) -> int:
    wrong = 0
    for seed in range(first, first + count):
        print(f"seed {seed}", flush=True)
        program = make_program(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled, evaluated = run_compiled(program)
        found = differences(compiled, evaluated, "bfloat16" in str(program))
        if found:
            wrong += 1
            print(f"{found}\n{program}", flush=True)
    print(f"# {count} programs, {wrong} differ")
    return min(wrong, 1)


def main(arguments: list[str]) -> int:
    """Run the programs; in a child, unless this is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--planted", action="store_true", help="kernels load what is one further")
    parser.add_argument("--inside", action="store_true", help="this process has the sanitizers")
    options = parser.parse_args(arguments)
    if options.inside:
        with mock.patch.object(scope, "_place", _one_further if options.planted else _PLACE):
            return _run(options.first, options.programs)
    found = run_sanitized(arguments, 60 + 60 * options.programs)
    print(found.stdout, found.stderr, sep="\n")
    return found.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
