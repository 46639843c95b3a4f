"""Run random programs of the reference's vocabulary, and shrink those that differ."""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.reference.check import Found, check, warm_up
from tests.fuzz.reference.generator import generate
from tests.fuzz.reference.program import Program, parse
from tests.fuzz.reference.shrinking import idioms_left, idioms_of, shrunk
from tests.fuzz.reference.vocabulary import IDIOMS

SAID_EVERY = 250
# How many failures of a kind are shrunk.
SHRUNK_OF_A_KIND = 2


class Tally:
    """What became of the programs of consecutive seeds."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._start = time.monotonic()
        self.done = self.void = self.compiled = self.errors = 0
        self.found: Counter[tuple[str, str]] = Counter()
        self.kinds: Counter[tuple[str, str, str]] = Counter()
        self._shrunk: Counter[tuple[str, str, str]] = Counter()
        self.examples: dict[tuple[str, str, str], tuple[int, str]] = {}

    def add(self, seed: int, only: Sequence[str]) -> None:
        """Check the program of a seed, made of these idioms only."""
        program = generate(seed, only)
        if self._arguments.way:
            program = dataclasses.replace(program, way=self._arguments.way)
        outcome = check(program)
        self.done += 1
        self.void += outcome.is_void
        self.compiled += any(count >= 3 for count in outcome.graphs)
        self.errors += bool(outcome.errors)
        if outcome.is_void and self._arguments.verbose:
            print(f"void {seed}: {outcome.why[-300:]}")
        if outcome.found is not None:
            self._note(program, outcome.found)
        if self.done % SAID_EVERY == 0:
            self.say()

    def _note(self, program: Program, found: Found) -> None:
        names = ", ".join(idioms_of(program))
        groups = (*found.key, names)
        if self._arguments.shrink and self._shrunk[groups] < self._arguments.each:
            self._shrunk[groups] += 1
            program, found = shrunk(program, found, self._arguments.shrink)
            names = ", ".join(idioms_left(program))
            groups = (*found.key, names)
        if self.kinds[groups] <= self._arguments.each:
            self._keep(program, found, names)
        self.found[found.key] += 1
        self.kinds[groups] += 1
        self.examples.setdefault(groups, (program.seed, found.text))
        print(f"--- seed {program.seed}: {found.kind} [{names}] {found.text[:600]}", flush=True)

    def _keep(self, program: Program, found: Found, names: str) -> None:
        folder = self._arguments.keep
        if not folder:
            return
        word = "".join(c if c.isalnum() else "_" for c in f"{found.kind}-{names}")[:90]
        path = Path(folder) / f"{word}-{program.seed}.py"
        why = "".join(f"# {line}\n" for line in found.text[:1500].splitlines())
        path.write_text(f"{program.render()}\n{why}")

    def say(self) -> None:
        """Print how many programs there were, and what they came to."""
        seconds = time.monotonic() - self._start
        ran = max(self.done - self.void, 1)
        print(
            f"{self.done} programs in {seconds:.0f} s, {sum(self.found.values())} differ; "
            f"{100 * self.compiled / ran:.0f} % have a graph of three operators, {self.void} are "
            f"void, {self.errors} raise",
            flush=True,
        )

    def table(self) -> None:
        """Print the failures by kind."""
        for key, count in sorted(self.kinds.items(), key=lambda one: one[0][2]):
            kind, cause, names = key
            print(f"{count:4} {kind:8} {cause:30} {names:60} seed {self.examples[key][0]}")


def run_shards(arguments: argparse.Namespace) -> int:
    """The same in several processes."""
    size = -(-arguments.programs // arguments.jobs)
    command = [sys.executable, "-m", "tests.fuzz.reference", "--programs", str(size)]
    command += ["--shrink", str(arguments.shrink)]
    command += ["--keep", arguments.keep] if arguments.keep else []
    for name in arguments.only:
        command += ["--only", name]
    firsts = [arguments.seed + shard * size for shard in range(arguments.jobs)]
    shards = [subprocess.Popen([*command, "--seed", str(first)]) for first in firsts]
    return max([shard.wait() for shard in shards])


def replay(files: Sequence[str]) -> bool:
    """Check programs that were kept; whether any differs."""
    differ = 0
    for file in files:
        found = check(parse(Path(file).read_text())).found
        differ += found is not None
        print(f"{Path(file).name}: {'agrees' if found is None else found.kind}", flush=True)
        if found is not None:
            print(f"    {found.text[:300]}", flush=True)
    print(f"{differ} of {len(files)} differ")
    return differ > 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.reference", description=__doc__)
    parser.add_argument("--programs", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--shrink", type=float, default=0, help="seconds to shrink a failure for")
    parser.add_argument("--sweep", action="store_true", help="so many programs of each idiom")
    parser.add_argument("--each", type=int, default=SHRUNK_OF_A_KIND, help="shrunk of a kind")
    parser.add_argument("--keep", default="", help="a folder for the shrunk programs")
    parser.add_argument("--only", action="append", default=[], help="an idiom; no others are used")
    parser.add_argument("--show", action="store_true", help="print the programs")
    parser.add_argument("--verbose", action="store_true", help="say which are void")
    parser.add_argument("--way", default="", help="an expression that compiles `entry`")
    parser.add_argument("--replay", nargs="+", default=[], help="files of programs to check")
    arguments = parser.parse_args()
    if arguments.jobs > 1:
        return run_shards(arguments)
    warm_up()
    if arguments.replay:
        return replay(arguments.replay)
    tally = Tally(arguments)
    names = arguments.only or [one.name for one in IDIOMS]
    for only in [[name] for name in names] if arguments.sweep else [arguments.only]:
        for seed in range(arguments.seed, arguments.seed + arguments.programs):
            if arguments.show:
                print(generate(seed, only).render())
            tally.add(seed, only)
    tally.table()
    tally.say()
    return bool(tally.found)


if __name__ == "__main__":
    sys.exit(main())
