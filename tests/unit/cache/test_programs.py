"""Compiled programs and the cache: several processes, compilers that hang, no cache at all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from braze.cache import cache_of
from braze.errors import BuildFailed, CompilerExpired
from braze.ir.kernels.kernel import SourceUnit
from braze.options import Options
from braze.runtime.launch.build_cache import build
from braze.runtime.launch.cpp_compiler import NoCompiler, Toolchain, find_toolchain

PROGRAM = """
import os, torch, braze
f = braze.compile(lambda x: (x * 2).sum(), fullgraph=True)
g = braze.compile(lambda x: x.cos() + 1, fullgraph=True)
x = torch.ones(100)
assert f(x).item() == 200 and torch.equal(g(x), x.cos() + 1)
explained = braze.explain(lambda x: x.sin() + 1)(x)
text = f"{explained.counters['kernels']} {explained.fallbacks}" + chr(10)
os.write(1, text.encode())  # at once, whoever writes beside it
"""
# Notes the hash of each source that it is to build, then builds it.
COUNTING = """#!/bin/sh
case "$*" in *--version*) exec g++ --version;; esac
cat > "$TMPDIR/source.cpp"
sum=$(md5sum < "$TMPDIR/source.cpp")
echo "$sum" >> "LOG"
exec g++ "$@" < "$TMPDIR/source.cpp"
"""


# Six processes that begin at once; PyTorch is imported for all.
SIX = """
import os, torch, braze
children = []
while len(children) < 6:
    child = os.fork()
    if not child:
        break
    children.append(child)
else:
    raise SystemExit(max(os.waitpid(child, 0)[1] for child in children))
"""


def run(program: str, **environment: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_six_processes_build_each_kernel_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    compiler = script(tmp_path / "compiler", COUNTING.replace("LOG", str(log)))
    output, errors = run(SIX + PROGRAM, BRAZE_CACHE_DIR=str(tmp_path / "cache"), BRAZE_CXX=compiler)
    assert sorted(output.split("\n")[:-1]) == ["1 ()"] * 6 and not errors, errors
    built = Counter(log.read_text().splitlines())
    assert set(built.values()) == {1} and len(built) >= 4, built  # three kernels, the launcher


@pytest.mark.parametrize("setting", ["refused", "off"])
def test_programs_compile_without_a_cache(tmp_path: Path, setting: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "temporary").mkdir()
    output, errors = run(
        PROGRAM,
        BRAZE_CACHE_DIR=str(tmp_path / "file" / "cache"),
        BRAZE_CACHE="0" if setting == "off" else "1",
        TMPDIR=str(tmp_path / "temporary"),
    )
    assert output == "1 ()\n", errors
    assert errors.count("BrazeWarning") == (setting == "refused")
    assert not list((tmp_path / "temporary").iterdir())


# A child for each limit, what it says one line each.
LIMITED = """
import os, resource, signal, warnings, torch, braze
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

def work(kind, room):
    used = len(os.listdir("/proc/self/fd")) if kind == resource.RLIMIT_NOFILE else 0
    resource.setrlimit(kind, (used + room, used + room))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f = braze.compile(lambda x: (x * 2).sum())
        results = [f(torch.ones(100) + n).item() for n in range(3)]
    said = " ".join(str(each.message) for each in caught)
    return results == [200, 400, 600], "PyTorch's own kernels" in said, "bug" in said

for kind, rooms in ((resource.RLIMIT_NOFILE, (0, 3, 6, 40)), (resource.RLIMIT_FSIZE, (0, 5000))):
    for room in rooms:
        child = os.fork()
        if not child:
            text = f"{kind == resource.RLIMIT_NOFILE} {room} {work(kind, room)}" + chr(10)
            os.write(1, text.encode())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, (kind, room)
"""


def test_a_machine_without_room_runs_on(tmp_path: Path) -> None:
    output, errors = run(LIMITED, BRAZE_CACHE_DIR=str(tmp_path / "cache"))
    lines = output.splitlines()
    assert len(lines) == 6 and all("(True, " in line for line in lines), (output, errors)
    assert not any(line.endswith("True)") for line in lines), (output, errors)  # no bug of ours
    assert lines[0] == "True 0 (True, True, False)", lines
    assert lines[3] == "True 40 (True, False, False)", lines
    assert lines[4] == "False 0 (True, True, False)", lines


HANGING = """#!/bin/sh
case "$*" in *--version*) VERSION;; esac
sleep 100 &
wait
"""


def test_a_compiler_that_hangs_is_stopped(tmp_path: Path) -> None:
    text = HANGING.replace("VERSION", "echo gcc; exit 0")
    compiler = script(tmp_path / "compiler", text)
    began = time.monotonic()
    output, errors = run(
        PROGRAM,
        BRAZE_CACHE_DIR=str(tmp_path / "cache"),
        BRAZE_CXX=compiler,
        BRAZE_BUILD_TIMEOUT="2",
    )
    assert "the graph runs by eager kernels" in output, output
    assert "did not end within 2 s" in errors and "BRAZE_BUILD_TIMEOUT" in errors
    assert "PyTorch's own kernels" in errors and time.monotonic() - began < 90
    assert not list((tmp_path / "cache" / "kernels").iterdir())


def test_what_a_compiler_started_is_ended_too(tmp_path: Path) -> None:
    """The pipes of a driver are held by what it starts: it would be waited for."""
    compiler = script(tmp_path / "compiler", HANGING.replace("VERSION", "exit 0"))
    options = Options(cache_dir=tmp_path / "cache", build_timeout=1)
    began = time.monotonic()
    with pytest.raises(CompilerExpired, match="within 1 s"):
        build([SourceUnit("unit", "")], Toolchain(compiler, (), (), "x"), options)
    assert time.monotonic() - began < 20
    asked = find_toolchain(Options(compiler=compiler))
    assert isinstance(asked, NoCompiler) and "does not end" in asked.reason


def test_one_that_hangs_at_its_version_is_no_compiler(tmp_path: Path) -> None:
    compiler = script(tmp_path / "compiler", HANGING.replace("VERSION", "sleep 100"))
    options = Options(compiler=compiler, build_timeout=1)
    for _ in range(2):
        asked = find_toolchain(options)
        assert isinstance(asked, NoCompiler) and "does not end" in asked.reason


def test_one_slow_kernel_costs_no_other(tmp_path: Path) -> None:
    """A compiler that builds the smallest program goes on being asked."""
    text = 'while [ "$1" != "-o" ]; do shift; done\nif grep -q slow; then sleep 60; fi\n: > "$2"\n'
    compiler = script(tmp_path / "compiler", f"#!/bin/sh\n{text}")
    toolchain = Toolchain(compiler, (), (), "x")
    options = Options(cache_dir=tmp_path / "cache", build_timeout=1, compiler=compiler)
    with pytest.raises(CompilerExpired):
        build([SourceUnit("unit", "slow")], toolchain, options)
    assert build([SourceUnit("unit", "quick")], toolchain, options).image == b""
    assert cache_of(options).counts["built"] == 1


def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    compiler = script(tmp_path / "compiler", "#!/bin/sh\necho no >&2\nexit 1\n")
    options = Options(cache_dir=tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(BuildFailed, match="no"):
            build([SourceUnit("unit", "")], Toolchain(compiler, (), (), "x"), options)
    assert not list((tmp_path / "cache" / "kernels").iterdir())
