"""Run programs by seed, those that train among them, and shrink the failing ones; or whole training
steps of one form; or plant bugs, and count programs until each is found."""

from __future__ import annotations

import argparse
import importlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import final

from tests.fuzz.generator import generate
from tests.fuzz.hosts import with_hosts
from tests.fuzz.isolation import Checker, check_programs, check_training_seeds
from tests.fuzz.planted import BUGS, Planted, programs_until_found
from tests.fuzz.program import HEADER, Program, on_device, roughly_in_float64
from tests.fuzz.runner import Difference
from tests.fuzz.shrink import Fails, shrink
from tests.fuzz.training_loops import generate_loop
from tests.fuzz.training_plans import plan_training

KEPT = Path(__file__).parents[1] / "regress" / "fuzz"
# Programs after which a run says how far it is: one that is killed leaves its figures.
SAID_EVERY = 250
# Of the planted bugs, so many must be found.
SHARE = 28 / 30


def like(difference: Difference, checker: Checker) -> Fails:
    """Whether a program fails in the same way."""

    def fails(program: Program) -> bool:
        found = checker(program)
        key = (difference.kind, difference.cause)
        return found is not None and (found.kind, found.cause) == key

    return fails


def show(program: Program, difference: Difference, seconds: float, keep: str = "") -> None:
    """Print a failing program, shrunk; `keep` is the name under which it becomes a test."""
    if seconds:
        checker = Checker()
        program = shrink(program, like(difference, checker), seconds)
        difference = checker(program) or difference
        checker.close()
    print(program.render().replace(HEADER, ""))
    if keep:
        (KEPT / f"{keep}.txt").write_text(program.render())
    print(str(difference)[-2500:], flush=True)


def run_one(args: argparse.Namespace) -> bool:
    """One program, printed; whether it differs."""
    program = _maker(args)(args.seed)
    checker = Checker(prepare=_preparation(args))
    difference = checker(program)
    checker.close()
    if difference is None:
        print(program.render(), "no difference", sep="\n")
    else:
        show(program, difference, args.shrink, args.keep)
    return difference is not None


def run_training(args: argparse.Namespace) -> bool:
    """One training step, its plan printed; whether it differs."""
    plan = plan_training(args.seed)
    checker = Checker()
    difference = checker(plan)
    checker.close()
    print(plan, difference or "no difference", sep="\n")
    return difference is not None


def run_many(args: argparse.Namespace) -> bool:
    """Programs of consecutive seeds; whether any differs. Says from time to time, and where it is
    interrupted, how many there were."""
    tally = Tally(args.first, _maker(args))
    seeds = range(args.first, args.first + args.programs)
    if args.training:
        found = check_training_seeds(seeds)
    else:
        found = check_programs(seeds, _maker(args), _preparation(args))
    shrinks = 0 if args.training else args.shrink
    try:
        for seed, difference in found:
            tally.done += 1
            if difference is not None:
                tally.note(seed, difference, shrinks)
            if tally.done % SAID_EVERY == 0:
                tally.say()
    except KeyboardInterrupt:
        _ignore_signals()  # `timeout` sends two
        print("interrupted:", end=" ")
    for (kind, cause), count in tally.found.most_common():
        print(f"{count:5} {kind}: {cause}")
    tally.say()
    return bool(tally.found) or tally.done < args.programs


@final
class Tally:
    """What became of consecutive programs so far."""

    def __init__(self, first: int, generate: Callable[[int], Program] = generate) -> None:
        self.first, self.done = first, 0
        self._generate = generate
        self.found: Counter[tuple[str, str]] = Counter()
        self._start, self._shrinking = time.monotonic(), 0.0

    def note(self, seed: int, difference: Difference, seconds: float) -> None:
        """Print a difference; the first of its kind is shrunk for so many seconds."""
        key = (difference.kind, difference.cause)
        self.found[key] += 1
        print(f"--- seed {seed}: {str(difference)[:400]}", flush=True)
        if seconds and self.found[key] == 1:
            before = time.monotonic()
            show(self._generate(seed), difference, seconds)
            self._shrinking += time.monotonic() - before

    def say(self) -> None:
        """Print how many programs there were, and how many differ."""
        rate = self.done / max(time.monotonic() - self._start - self._shrinking, 1e-3)
        seeds = f"{self.done} programs from seed {self.first}"
        print(f"{seeds}, {rate:.1f} a second, {self.found.total()} differ", flush=True)


def run_shards(args: argparse.Namespace) -> bool:
    """The same in several processes."""
    size = -(-args.programs // args.jobs)
    shards = []
    for shard in range(args.jobs):
        first = args.first + shard * size
        count = min(size, args.first + args.programs - first)
        command = ["--first", str(first), "--programs", str(count), "--shrink", str(args.shrink)]
        kinds = ("training", "loops", "interpreted", "hosts")
        command += [f"--{kind}" for kind in kinds if getattr(args, kind)]
        command += ["--device", args.device] if args.device else []
        command += ["--mode", args.mode] if args.mode else []
        shards.append(subprocess.Popen([sys.executable, "-m", "tests.fuzz", *command]))
    statuses = []
    while len(statuses) < len(shards):
        try:
            statuses.append(shards[len(statuses)].wait())
        except KeyboardInterrupt:  # each of them got it, too, and says what it has found
            _ignore_signals()
    return any(statuses)


def _preparation(args: argparse.Namespace) -> Callable[[], object]:
    return partial(_interpret, args.mode) if args.interpreted else lambda: None


def _interpret(mode: str | None) -> None:
    """In the child: what is imported asks for a device, and who has asked cannot be forked."""
    importlib.import_module("tests.fuzz.interpreted").install(mode)


def _maker(args: argparse.Namespace) -> Callable[[int], Program]:
    """What makes a program of a seed."""
    if not args.device:
        return generate_loop if args.loops else generate

    def make(seed: int) -> Program:
        made = roughly_in_float64(generate_loop(seed)) if args.loops else generate(seed)
        made = with_hosts(made, args.device) if args.hosts else made
        return on_device(made, args.device, args.mode)

    return make


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def run_planted(args: argparse.Namespace) -> bool:
    """A table of how many programs it takes to find each planted bug whose name has `args.bug` in
    it; whether too few are."""
    bugs = [bug for bug in BUGS if args.bug in bug.name]
    found = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        if args.jobs > 1:
            counts = pool.map(partial(_programs_in_a_process, args), bugs)
        else:
            counts = map(partial(_programs_here, args), bugs)
        for bug, count in zip(bugs, counts):
            found += count is not None
            print(f"{'not found' if count is None else count:>9}  {bug.name}", flush=True)
    print(f"{found} of {len(bugs)} planted bugs found within {args.programs} programs each")
    return found < SHARE * len(bugs)


def _programs_here(args: argparse.Namespace, bug: Planted) -> int | None:
    return programs_until_found(bug, args.programs, args.first)


def _programs_in_a_process(args: argparse.Namespace, bug: Planted) -> int | None:
    limits = ["--programs", str(args.programs), "--first", str(args.first)]
    command = [sys.executable, "-m", "tests.fuzz", "--planted", "--bug", bug.name, *limits]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    count = next((line.split()[0] for line in said.splitlines() if line.endswith(bug.name)), "")
    return int(count) if count.isdecimal() else None


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, help="one program; it is printed")
    parser.add_argument("--keep", default="", help="make the shrunk program of the seed a test")
    parser.add_argument("--first", type=int, default=0, help="first seed of many")
    parser.add_argument("--programs", type=int, default=200, help="how many")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--shrink", type=float, default=0, help="seconds to shrink each kind for")
    parser.add_argument("--training", action="store_true", help="whole training steps")
    parser.add_argument("--loops", action="store_true", help="programs that train")
    parser.add_argument("--device", help="programs whose tensors are there; not with --training")
    parser.add_argument("--hosts", action="store_true", help="some tensors of them on the host")
    parser.add_argument("--mode", help="that such programs are compiled in")
    parser.add_argument(
        "--interpreted", action="store_true", help="the way of a GPU, without one; needs Triton"
    )
    parser.add_argument("--planted", action="store_true", help="find the planted bugs")
    parser.add_argument("--bug", default="", help="only those whose name has this in it")
    args = parser.parse_args()
    if args.interpreted:
        args.device = "cpu"
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what `timeout` sends
    if args.planted:
        return run_planted(args)
    if args.seed is not None:
        return run_training(args) if args.training else run_one(args)
    return run_shards(args) if args.jobs > 1 else run_many(args)


if __name__ == "__main__":
    sys.exit(main())
