"""Random fused programs whose kernels GCC builds with its sanitizers of addresses and of undefined
behaviour: the process ends at the first byte that is read or written outside of an allocation.

    python -m tests.differential.sanitized --programs 100 --first 0
    python -m tests.differential.sanitized --programs 100 --bounds

With --bounds each element that a kernel reads or writes is also compared with the ends of its own
buffer, since intermediate buffers lie beside each other in one allocation. The programs run in a
child process, into which the sanitizers' libraries are loaded before Python's own: memory that
PyTorch allocates has guarded bytes around it, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from braze.codegen.cpp import scope, source
from braze.codegen.cpp.index import index_text
from braze.codegen.cpp.phase import PhaseWriter
from braze.shapes.expr import as_expr, dot
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
    return scope.CppTerm(f"{found.text} + 1", found.level)


_PLACE = scope._place

_WITHIN = """
template <class T> struct bz_buffer {
    T* p; i64 count;
    T& operator[](i64 place) const {
        if ((u64)place >= (u64)count) __builtin_trap();
        return p[place];
    }
};
template <class T> static bz_buffer<T> bz_within(T* p, i64 count) { return {p, count}; }
"""


def _with_ends(writer: PhaseWriter) -> None:
    """A writer's pointers become buffers that know how many elements they reach."""
    _SET_UP(writer)
    for buffer, name in writer.pointers.items():
        reach = dot([as_expr(n) - 1 for n in buffer.shape], buffer.stride) + 1
        writer.pointers[buffer] = f"bz_within({name}, {index_text(reach, writer.sizes)})"


_SET_UP = PhaseWriter.__post_init__
_PRELUDE = source.prelude_for


@contextlib.contextmanager
def bounds_checked() -> Iterator[None]:
    """Kernels that are generated inside stop the process where an element is not in its buffer."""
    with (
        mock.patch.object(PhaseWriter, "__post_init__", _with_ends),
        mock.patch.object(source, "prelude_for", lambda text: f"{_PRELUDE(text)}{_WITHIN}"),
    ):
        yield


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
    parser.add_argument("--bounds", action="store_true", help="of each buffer by itself, too")
    options = parser.parse_args(arguments)
    if options.inside:
        checks = bounds_checked() if options.bounds else contextlib.nullcontext()
        place = _one_further if options.planted else _PLACE
        with checks, mock.patch.object(scope, "_place", place):
            return _run(options.first, options.programs)
    found = run_sanitized(arguments, 60 + 60 * options.programs)
    print(found.stdout, found.stderr, sep="\n")
    return found.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
