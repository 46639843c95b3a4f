"""Run programs by seed, and shrink the failing ones: see `--help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.generator import generate
from tests.fuzz.isolation import Checker, check_seeds
from tests.fuzz.program import HEADER, Program
from tests.fuzz.runner import Difference
from tests.fuzz.shrink import Fails, shrink

KEPT = Path(__file__).parents[1] / "regress" / "fuzz"


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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, help="one program; it is printed")
    parser.add_argument("--keep", default="", help="make the shrunk program of the seed a test")
    parser.add_argument("--first", type=int, default=0, help="first seed of many")
    parser.add_argument("--programs", type=int, default=200, help="how many")
    parser.add_argument("--shrink", type=float, default=0, help="seconds to shrink each kind for")
    parser.add_argument("--each", type=int, default=1, help="how many of a kind to shrink")
    args = parser.parse_args()
    if args.seed is not None:
        program = generate(args.seed)
        difference = Checker()(program)
        if difference is None:
            print(program.render(), "no difference", sep="\n")
        else:
            show(program, difference, args.shrink, args.keep)
        return difference is not None
    start = time.monotonic()
    found: Counter[tuple[str, str]] = Counter()
    spent = 0.0
    for seed, difference in check_seeds(range(args.first, args.first + args.programs)):
        if difference is None:
            continue
        found[difference.kind, difference.cause] += 1
        print("#####", seed, str(difference)[:400], flush=True)
        if args.shrink and found[difference.kind, difference.cause] <= args.each:
            before = time.monotonic()
            show(generate(seed), difference, args.shrink)
            spent += time.monotonic() - before
    for (kind, cause), count in found.most_common():
        print(f"{count:5} {kind}: {cause}")
    rate = args.programs / (time.monotonic() - start - spent)
    print(f"{args.programs} programs, {rate:.1f} a second")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
