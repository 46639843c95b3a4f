"""Does what `plants.py` lists, each to a process of its own: the victim, who asks for a kernel.

    python -m tests.unit.cache.planted [part of a name]

prints one line of JSON a way; without an argument it reads names, one a line. Run as root the
victim is user 65534; else what needs other users is left out. The victim is forked, so that PyTorch
is imported once.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from braze.cache import cache_of, private
from braze.ir.kernels.kernel import SourceUnit
from braze.options import Options, config
from braze.runtime.launch.build_cache import _key, build, load
from braze.runtime.launch.cpp_compiler import Toolchain
from tests.unit.cache.plants import VICTIM, GuardContext, Plant, all_plants

DEADLINE = 20.0
RIGHT = 7

_GOOD = f'extern "C" int f() {{ return {RIGHT}; }}\n'
_EVIL = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void run() { close(open("MARK", O_CREAT | O_WRONLY, 0666)); }
extern "C" int f() { return 666; }
"""
# Copies what was compiled before: a compiler that takes no time, and that is counted.
_COMPILER = """#!/bin/sh
echo run >> "COUNT"
while [ "$1" != "-o" ]; do shift; done
cat > /dev/null
exec cp "OBJECT" "$2"
"""


@final
@dataclass(frozen=True)
class Outcome:
    """What came of one way. ended: "" or how the victim died; planted: whether foreign code ran;
    compiles: runs of the compiler; is_kept: whether the entry is now a good one of the victim's,
    in the cache; modes: of what the victim made, that others could write to or read."""

    name: str
    ended: str
    planted: bool
    result: int = 0
    warned: tuple[str, ...] = ()
    compiles: int = 0
    is_kept: bool = False
    left: int = 0
    modes: tuple[str, ...] = ()
    seconds: float = 0.0


@final
class Scene:
    """The folder where all cases take place, one after the other."""

    def __init__(self, base: Path) -> None:
        self.base, self.open = base, base / "open"
        self.temporary, self.mark = self.open / "tmp", self.open / "mark"
        self.count = self.open / "count"
        base.chmod(0o755)
        for folder in (self.open, self.temporary):
            folder.mkdir()
            folder.chmod(0o1777)
        self.good = self._object("good", _GOOD)
        self.evil = self._object("evil", _EVIL.replace("MARK", str(self.mark)))
        self.compiler = base / "compiler"
        text = _COMPILER.replace("COUNT", str(self.count))
        self.compiler.write_text(text.replace("OBJECT", str(base / "good.so")))
        self.compiler.chmod(0o755)
        self.toolchain = Toolchain(str(self.compiler), (), (), "toolchain")
        self.unit = SourceUnit("unit", "asked for")
        tempfile.tempdir = str(self.temporary)
        # What is imported late, is imported now; another key, or the loader would know it.
        other = replace(self.options(base / "warm"), cache_dir=base / "warm")
        assert load(build([SourceUnit("warm", "")], self.toolchain, other)).f() == RIGHT

    def _object(self, name: str, text: str) -> bytes:
        path = self.base / f"{name}.so"
        command = ["g++", "-shared", "-fPIC", "-w", "-x", "c++", "-", "-o", str(path)]
        subprocess.run(command, input=text, text=True, check=True)
        path.chmod(0o755)
        return path.read_bytes()

    def options(self, folder: Path) -> Options:
        """Those of the victim."""
        return replace(config.snapshot(), cache_dir=folder, build_timeout=5)

    def play(self, plant: Plant, number: int) -> Outcome:
        """One case."""
        base = self.base / str(number)
        base.mkdir()
        base.chmod(0o755)
        for file in (self.mark, self.count):
            file.unlink(missing_ok=True)
        world = GuardContext(
            base, "kernels", f"{_key([self.unit], self.toolchain)}.braze", self.good, self.evil
        )
        plant.do(world)
        began = time.monotonic()
        ended, said = self._run(world, plant)
        seconds = time.monotonic() - began
        compiles = self.count.read_text().count("run") if self.count.exists() else 0
        kept, modes = _kept(world), _open_to_others(world) if "umask" in plant.name else ()
        left = len(list(self.temporary.iterdir()))
        outcome = Outcome(
            plant.name,
            ended,
            self.mark.exists() or said.get("result") == 666,
            said.get("result", 0),
            tuple(said.get("warned", ())),
            compiles,
            kept,
            left,
            modes,
            round(seconds, 2),
        )
        shutil.rmtree(base)
        for each in self.temporary.iterdir():
            shutil.rmtree(each)
        return outcome

    def _run(self, world: GuardContext, plant: Plant) -> tuple[str, dict[str, Any]]:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            _be_victim(self, world, plant, writing)
        os.close(writing)
        deadline, text = time.monotonic() + DEADLINE, b""
        while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            chunk = os.read(reading, 1 << 16)
            if not chunk:
                break
            text += chunk
        else:
            os.kill(child, signal.SIGKILL)
        os.close(reading)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return "hangs" if number == signal.SIGKILL else signal.Signals(number).name, {}
        said = json.loads(text or "{}")
        return said.pop("raised", ""), said


def _be_victim(scene: Scene, world: GuardContext, plant: Plant, writing: int) -> None:
    """In the child: ask for the kernel, say what came of it, end."""
    said: dict[str, Any] = {}
    try:
        if os.getuid() == 0:
            os.setgroups([])
            os.setresgid(VICTIM, VICTIM, VICTIM)
            os.setresuid(VICTIM, VICTIM, VICTIM)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: else /proc/self is root's
        os.umask(plant.umask)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            options = scene.options(world.cache)
            said["result"] = load(build([scene.unit], scene.toolchain, options)).f()
            cache_of(options).read(world.kind, "f" * 32)  # a second use says nothing more
        said["warned"] = [str(each.message) for each in caught]
    except BaseException:
        said["raised"] = traceback.format_exc()
    with contextlib.suppress(Exception):
        if private.PRIVATE.existing is not None:
            private._remove(os.getpid(), private.PRIVATE.existing)
    os.write(writing, json.dumps(said).encode())
    os._exit(0)


def _kept(world: GuardContext) -> bool:
    """Whether the entry is there, the victim's, and whole."""
    with contextlib.suppress(OSError):
        facts = os.lstat(world.entry)
        owner = VICTIM if os.getuid() == 0 else os.getuid()
        if facts.st_uid == owner and facts.st_mode == 0o100600:
            return world.entry.read_bytes()[92:] == world.good
    return False


def _open_to_others(world: GuardContext) -> tuple[str, ...]:
    found = [world.cache, *world.cache.rglob("*")]
    return tuple(f"{path} {path.stat().st_mode:o}" for path in found if path.stat().st_mode & 0o077)


def main() -> None:
    """Play the cases that are asked for."""
    names = set(sys.stdin.read().splitlines()) if len(sys.argv) < 2 else None
    wanted = [
        plant
        for plant in all_plants()
        if (sys.argv[1] in plant.name if names is None else plant.name in names)
        and (not plant.others or os.getuid() == 0)
    ]
    with tempfile.TemporaryDirectory(prefix="braze-planted-", dir="/tmp") as base:
        scene = Scene(Path(base))
        for number, plant in enumerate(wanted):
            print(json.dumps(scene.play(plant, number).__dict__), flush=True)


if __name__ == "__main__":
    main()
